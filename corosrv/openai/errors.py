"""Errors in OpenAI's shape: the one place where what happened becomes a status and an error object."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from flask import Response

from corosrv import errors


class _Wire(NamedTuple):
    status: int
    type: str
    code: str | None = None


# The first class that matches decides, so that the narrower stand above the wider.
_WIRE: tuple[tuple[type[errors.CorosrvError], _Wire], ...] = (
    (errors.PromptTooLong, _Wire(400, "exceed_context_size_error")),
    (errors.BodyTooLarge, _Wire(413, "invalid_request_error")),
    (errors.UnsupportedMedia, _Wire(415, "invalid_request_error")),
    (errors.ModelNotFound, _Wire(404, "not_found_error")),
    (errors.Refused, _Wire(400, "invalid_request_error")),
    (errors.Unauthorized, _Wire(401, "authentication_error", "invalid_api_key")),
    (errors.QueueFull, _Wire(429, "rate_limit_error", "queue_full")),
    (errors.Unavailable, _Wire(503, "unavailable_error")),
    (errors.UsedAfterFork, _Wire(503, "unavailable_error")),
    (errors.ClientGone, _Wire(499, "client_closed_request")),
    (errors.CorosrvError, _Wire(500, "server_error")),
)


def _wire(error: errors.CorosrvError) -> _Wire:
    return next(wire for kind, wire in _WIRE if isinstance(error, kind))


def body(error: errors.CorosrvError) -> dict[str, Any]:
    """`{"error": {...}}` with its four members, and the counts of a prompt that is too long."""
    wire = _wire(error)
    members: dict[str, Any] = {
        "message": str(error),
        "type": wire.type,
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", wire.code),
    }
    if isinstance(error, errors.PromptTooLong):
        members |= {"n_prompt_tokens": error.n_tokens, "n_ctx": error.context}
    return {"error": members}


def response(error: errors.CorosrvError) -> Response:
    """The error as an answer with its status and headers."""
    answer = json_response(body(error), _wire(error).status)
    if isinstance(error, errors.Unauthorized):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, errors.Unavailable) and error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.retry_after)
    # What is left of a refused body is not read: nothing may follow it on this connection.
    if isinstance(error, (errors.Unauthorized, errors.BodyTooLarge, errors.UnsupportedMedia)) or (
        getattr(error, "code", None) in ("incomplete_body", "request_timeout")
    ):
        answer.headers["Connection"] = "close"
    return answer


def http_response(status: int, message: str) -> Response:
    """An error of HTTP itself: an unknown path, a wrong verb."""
    kinds = {
        404: ("not_found_error", None),
        405: ("invalid_request_error", "method_not_allowed"),
        501: ("not_supported_error", None),
    }
    kind, code = kinds.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return json_response({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, mimetype="application/json")
