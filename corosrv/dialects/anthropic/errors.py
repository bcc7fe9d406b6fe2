"""Writes errors in Anthropic's form."""

from __future__ import annotations

import msgspec

from corosrv.base.errors import CorosrvError, ErrorKind
from corosrv.dialects.anthropic.answer_types import MessagesError, MessagesErrorMembers, UnsupportedThread

_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.CONTEXT_EXCEEDED: "invalid_request_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.NOT_OFFERED: "invalid_request_error",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.CLIENT_GONE: "api_error",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.DEADLINE_PASSED: "api_error",
    ErrorKind.WORKER_LOST: "api_error",
    ErrorKind.FAILED: "api_error",
}


def body(error: CorosrvError, request_id: str) -> MessagesError:
    """Makes the answer or the event for an error."""
    details: UnsupportedThread | msgspec.UnsetType = msgspec.UNSET
    if error.param == "thread":
        details = UnsupportedThread("thread_unsupported_request", ["thread"])
    return MessagesError("error", MessagesErrorMembers(_TYPES[error.kind], str(error), details), request_id)
