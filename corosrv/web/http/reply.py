"""Answers that every dialect gives alike: JSON, and the status and headers that an error calls for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from flask import Response, g, request
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError, ErrorKind, Unavailable
from corosrv.web.http.flood import Flood, line
from corosrv.web.http.lean_flask import current

log = logging.getLogger("corosrv.http")
# Apart, for anybody can make many of the one kind, among which the other would be lost.
_unavailable = Flood(log, "%d more requests could not be served")
_failed = Flood(log, "%d more requests failed")

_PORTION = 65_536  # bytes of a body that are copied and sent at once
_ERROR = "corosrv_error"


class _WholeResponse(Response):
    """An answer whose body is there. Its headers are complete: nothing is left to do of what werkzeug does."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "HEAD" or self._on_close:
            return super().__call__(environ, start_response)
        start_response(self.status, self.headers.to_wsgi_list())
        return self.response


def json_response(value: Any, status: int = 200) -> Response:
    return _WholeResponse(msgspec.json.encode(value), status, content_type="application/json")


def whole_response(pieces: Sequence[bytes | memoryview], content_type: str, status: int = 200) -> Response:
    """Makes an answer of a body that was encoded in pieces; short ones are sent together, long ones portion by portion.

    The pieces must not change until they are sent.
    """
    n_bytes = sum(map(len, pieces))
    body = [b"".join(pieces)] if n_bytes <= _PORTION else _portions(pieces)
    answer = _WholeResponse(body, status, content_type=content_type)
    answer.headers["Content-Length"] = str(n_bytes)
    return answer


def _portions(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), _PORTION):
            yield bytes(piece[begin : begin + _PORTION])


def encoded_response(pieces: Sequence[bytes], status: int = 200) -> Response:
    """Makes an answer of JSON text that was encoded in pieces."""
    answer = Response(pieces, status, mimetype="application/json")
    answer.content_length = sum(map(len, pieces))
    return answer


def error_response(error: CorosrvError, body: Any, request_line: str = "") -> Response:
    """Makes the answer for an error from its body in a dialect's shape. Logs what is not the client's doing.

    `request_line`: method and path for the log, where no request of Flask's is at hand.
    """
    if not request_line:
        setattr(current(g), _ERROR, error)
    answer = json_response(body, error.status)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.retry_after)
    if error.should_retry is not None:
        answer.headers["X-Should-Retry"] = str(error.should_retry).lower()
    if error.ends_connection:
        answer.headers["Connection"] = "close"
    if error.status >= 500 and error.kind is not ErrorKind.NOT_OFFERED:
        flood = _unavailable if isinstance(error, Unavailable) else _failed
        flood.count(
            lambda: log.warning("%s: %s", line(request_line or f"{request.method} {request.path}"), line(str(error)))
        )
    return answer


def take_error() -> CorosrvError | None:
    """Returns the error that the current request is answered with, once; None if it is answered well."""
    error: CorosrvError | None = current(g).pop(_ERROR, None)
    return error


def register_errors(routes: Scaffold, body: Callable[[CorosrvError], Any]) -> None:
    """Gives errors of these routes the shape that `body` makes."""

    def answer(error: CorosrvError) -> Response:
        return error_response(error, body(error))

    routes.register_error_handler(CorosrvError, answer)
