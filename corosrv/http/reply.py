"""Answers that every dialect gives alike: JSON, and the status and headers that an error calls for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from flask import Response, request

from corosrv import errors
from corosrv.http.flood import Flood, line
from corosrv.http.message import CLIENT_GONE

log = logging.getLogger("corosrv.http")
# Apart, for anybody can make many of the one kind, among which the other would be lost.
_refused = Flood(log, "%d more requests could not be served")
_failed = Flood(log, "%d more requests failed")

# The first class that matches decides, so that the narrower stand above the wider.
_STATUS: tuple[tuple[type[errors.CorosrvError], int], ...] = (
    (errors.BodyTooLarge, 413),
    (errors.BodyTooSlow, 408),
    (errors.UnsupportedMedia, 415),
    (errors.NotFound, 404),
    (errors.NotOffered, 501),
    (errors.InvalidInput, 422),
    (errors.NotStreamed, 406),
    (errors.IdTaken, 409),
    (errors.TooManyReaders, 429),
    (errors.Refused, 400),
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.QueueFull, 429),
    (errors.NoCapacity, 409),
    (errors.Unavailable, 503),
    (errors.UsedAfterFork, 503),
    (errors.ClientGone, CLIENT_GONE),
    (errors.CorosrvError, 500),
)


def status(error: errors.CorosrvError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")


def encoded_response(pieces: Sequence[bytes], status: int = 200) -> Response:
    """An answer of JSON text that was encoded in pieces."""
    answer = Response(pieces, status, mimetype="application/json")
    answer.content_length = sum(map(len, pieces))
    return answer


def error_response(error: errors.CorosrvError, body: Any) -> Response:
    """An error in a dialect's shape, with the status and headers that are the same in all."""
    answer = json_response(body, status(error))
    if isinstance(error, errors.Unauthorized):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, errors.Unavailable) and error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.retry_after)
    # What is left of a refused body is not read: nothing may follow it on this connection.
    if isinstance(error, (errors.Unauthorized, errors.Forbidden, errors.BodyTooLarge, errors.UnsupportedMedia)) or (
        getattr(error, "code", None) in ("incomplete_body", "request_timeout")
    ):
        answer.headers["Connection"] = "close"
    return answer


def handler(render: Callable[[errors.CorosrvError], Response]) -> Callable[[errors.CorosrvError], Response]:
    """The error handler of a dialect that renders errors so; what is our own fault is logged, too."""

    def refuse(error: errors.CorosrvError) -> Response:
        answer = render(error)
        if answer.status_code >= 500 and not isinstance(error, errors.NotOffered):
            flood = _refused if isinstance(error, errors.Unavailable) else _failed
            flood.count(lambda: log.warning("%s %s: %s", request.method, line(request.path), line(str(error))))
        return answer

    return refuse
