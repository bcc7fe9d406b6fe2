"""Errors in OpenAI's shape: the one place where what happened becomes an error object."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from corosrv import errors
from corosrv.http import reply

# Type, and code where the error itself has none. The first class that matches decides.
_TYPES: tuple[tuple[type[errors.CorosrvError], str, str | None], ...] = (
    (errors.PromptTooLong, "exceed_context_size_error", None),
    (errors.NotFound, "not_found_error", None),
    (errors.NotOffered, "not_supported_error", None),
    (errors.Refused, "invalid_request_error", None),
    (errors.Unauthorized, "authentication_error", "invalid_api_key"),
    (errors.Forbidden, "permission_error", None),
    (errors.QueueFull, "rate_limit_error", "queue_full"),
    (errors.Unavailable, "unavailable_error", None),
    (errors.UsedAfterFork, "unavailable_error", None),
    (errors.ClientGone, "client_closed_request", None),
    (errors.CorosrvError, "server_error", None),
)
_HTTP = {
    404: ("not_found_error", None),
    405: ("invalid_request_error", "method_not_allowed"),
    501: ("not_supported_error", None),
}


def body(error: errors.CorosrvError) -> dict[str, Any]:
    """`{"error": {...}}` with its four members, and the counts of a prompt that is too long."""
    kind, code = next((kind, code) for of, kind, code in _TYPES if isinstance(error, of))
    members = _members(str(error), kind, getattr(error, "param", None), getattr(error, "code", None) or code)
    if isinstance(error, errors.PromptTooLong):
        members |= {"n_prompt_tokens": error.n_tokens, "n_ctx": error.context}
    return {"error": members}


def _members(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def response(error: errors.CorosrvError) -> Response:
    """The error as an answer with its status and headers."""
    return reply.error_response(error, body(error))


def register(routes: Blueprint) -> None:
    """Gives the errors of these routes OpenAI's shape; logs what is not the client's doing."""
    routes.register_error_handler(errors.CorosrvError, reply.handler(response))


def http_response(status: int, message: str) -> Response:
    """An error of HTTP itself: an unknown path, a wrong verb."""
    kind, code = _HTTP.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return reply.json_response({"error": _members(message, kind, None, code)}, status)
