"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from corosrv.errors import CorosrvError, ErrorKind, PromptTooLong

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
    ErrorKind.FAILED: "server_error",
}


def body(error: CorosrvError) -> dict[str, Any]:
    """Makes `{"error": {...}}` with its four members, and the counts of a prompt that is too long."""
    members: dict[str, Any] = {
        "message": str(error), "type": _TYPES[error.kind], "param": error.param, "code": error.code
    }  # fmt: skip
    if isinstance(error, PromptTooLong):
        members |= {"n_prompt_tokens": error.n_tokens, "n_ctx": error.context}
    return {"error": members}
