"""Status codes of gRPC for every kind of error, and what a client is told beside them."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from corosrv.base.errors import CorosrvError, ErrorKind
from corosrv.workers.wire.calls import AskEnd

_CODES = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CONTEXT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.NOT_OFFERED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorKind.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.CLIENT_GONE: grpc.StatusCode.CANCELLED,
    ErrorKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.DEADLINE_PASSED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.WORKER_LOST: grpc.StatusCode.ABORTED,
    ErrorKind.FAILED: grpc.StatusCode.INTERNAL,
}

PUSHBACK = "grpc-retry-pushback-ms"  # trailing metadata: when another try makes sense
REPLAYED = (("idempotency-replayed", "true"),)  # trailing metadata: an earlier call's answer, with the same key
_LONGEST_TEXT = 4096  # characters; it travels in a header, which peers bound at 8 KiB


@dataclass(frozen=True, slots=True)
class CallStatus:
    """Tells a client how its call failed."""

    code: grpc.StatusCode
    text: str
    retry_after: int | None = None  # seconds
    is_replayed: bool = False

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata."""
        pushback = () if self.retry_after is None else ((PUSHBACK, str(1000 * self.retry_after)),)
        return (*pushback, *REPLAYED) if self.is_replayed else pushback


class StatusError(Exception):
    """Ends the handling of a call with a status; caught in corosrv.dialects.kserve.grpc alone."""

    def __init__(self, status: CallStatus) -> None:
        super().__init__(status.text)
        self.status = status


def of_end(end: AskEnd) -> CallStatus:
    """Returns the status of a call that the server ended with an error."""
    return CallStatus(_code(end.error_kind), end.message[:_LONGEST_TEXT], end.retry_after, end.is_replayed)


def of_error(error: CorosrvError) -> CallStatus:
    return CallStatus(_CODES[error.kind], str(error)[:_LONGEST_TEXT], error.retry_after)


def _code(error_kind: str) -> grpc.StatusCode:
    try:
        return _CODES[ErrorKind(error_kind)]
    except ValueError:  # a newer server's
        return grpc.StatusCode.INTERNAL
