"""Errors in Anthropic's shape: the one place where what happened becomes one of theirs."""

from __future__ import annotations

from typing import Any

from flask import Response, g

from corosrv import errors
from corosrv.http import reply

# The first class that matches decides, so that the narrower stand above the wider.
_TYPES: tuple[tuple[type[errors.CorosrvError], str], ...] = (
    (errors.BodyTooLarge, "request_too_large"),
    (errors.NotFound, "not_found_error"),
    (errors.Refused, "invalid_request_error"),
    (errors.Unauthorized, "authentication_error"),
    (errors.Forbidden, "permission_error"),
    (errors.QueueFull, "rate_limit_error"),
    (errors.Unavailable, "overloaded_error"),
    (errors.UsedAfterFork, "overloaded_error"),
    (errors.CorosrvError, "api_error"),
)


def body(error: errors.CorosrvError, request_id: str) -> dict[str, Any]:
    """`{"type": "error", ...}`, as an answer and as an event."""
    kind = next(kind for of, kind in _TYPES if isinstance(error, of))
    return {
        "type": "error",
        "error": {"type": kind, "message": str(error)},
        "request_id": request_id,
    }


def response(error: errors.CorosrvError) -> Response:
    """The error as an answer with its status and headers."""
    return reply.error_response(error, body(error, g.corosrv_request_id))
