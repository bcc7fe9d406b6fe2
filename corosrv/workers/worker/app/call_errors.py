"""Turns the errors of a handler's own calls into those that authors know."""

from __future__ import annotations

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    ErrorKind,
    HandlerFailed,
    NotFound,
    NotOffered,
    Refused,
    Unavailable,
    WorkerLost,
)

_CLASSES: dict[ErrorKind, type[CorosrvError]] = {
    ErrorKind.INVALID_REQUEST: CallRefused,
    ErrorKind.CONTEXT_EXCEEDED: CallRefused,
    ErrorKind.TOO_LARGE: Refused,
    ErrorKind.NOT_OFFERED: NotOffered,
    ErrorKind.NOT_FOUND: NotFound,
    ErrorKind.UNAVAILABLE: Unavailable,
    ErrorKind.RATE_LIMITED: Unavailable,
    ErrorKind.CLIENT_GONE: CallCancelled,
    ErrorKind.CONFLICT: Conflict,
    ErrorKind.DEADLINE_PASSED: DeadlinePassed,
    ErrorKind.WORKER_LOST: WorkerLost,
}
_KINDS = {kind.value: kind for kind in ErrorKind}


def error_of(
    status: int, error_kind: str, message: str, code: str | None = None, retry_after: int | None = None
) -> CorosrvError:
    """Returns the error that a server has answered with, as an author knows it: HandlerFailed for the unknown."""
    kind = _KINDS.get(error_kind, ErrorKind.FAILED)
    error = _CLASSES.get(kind, HandlerFailed)(message)
    error.status = status
    error.kind = kind
    error.code = code
    error.retry_after = retry_after
    return error
