"""Errors in OpenAI's shape."""

from __future__ import annotations

from corosrv.base.errors import CorosrvError, ErrorKind, PromptTooLong
from corosrv.dialects.openai.answer_types import ErrorAnswer, ErrorMembers

_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.CONTEXT_EXCEEDED: "exceed_context_size_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.NOT_OFFERED: "not_supported_error",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "unavailable_error",
    ErrorKind.CLIENT_GONE: "client_closed_request",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.DEADLINE_PASSED: "server_error",
    ErrorKind.WORKER_LOST: "server_error",
    ErrorKind.FAILED: "server_error",
}


def body(error: CorosrvError) -> ErrorAnswer:
    """Makes the answer or the event for an error."""
    members = ErrorMembers(str(error), _TYPES[error.kind], error.param, error.code)
    if isinstance(error, PromptTooLong):
        members.n_prompt_tokens, members.n_ctx = error.n_tokens, error.context
    return ErrorAnswer(members)
