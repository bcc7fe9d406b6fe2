"""Errors as they travel between processes, and the errors that a handler may raise.

The text of the latter reaches the client. Any other exception fails the call as well; its text goes to the log alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

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
    ProtocolError,
    Refused,
    Unavailable,
    WorkerLost,
)

ErrorT = TypeVar("ErrorT", bound=CorosrvError)

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


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """A CorosrvError on its way to another process."""

    message: str
    status: int
    kind: str  # the value of an ErrorKind
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @classmethod
    def from_error(cls, error: CorosrvError) -> Fault:
        return cls(str(error), error.status, error.kind.value, error.code, error.param, error.retry_after)

    @property
    def error_kind(self) -> ErrorKind:
        """The kind; FAILED for one that only a newer process knows."""
        try:
            return ErrorKind(self.kind)
        except ValueError:
            return ErrorKind.FAILED

    def error(self) -> CorosrvError:
        """Returns the error as an author knows it: HandlerFailed for the unknown."""
        return self.fill(_CLASSES.get(self.error_kind, HandlerFailed)(self.message))

    def fill(self, error: ErrorT) -> ErrorT:
        """Gives an error the status, kind, code, parameter and time that stand here."""
        error.status = self.status
        error.kind = self.error_kind
        error.code = self.code
        error.param = self.param
        error.retry_after = self.retry_after
        return error


MAX_WORDS = 4096  # characters of a handler's own words to a client

HANDLER_FAILED = "the handler failed; the server's log says why"

# What a handler may raise: its kind in a CallFailure, and the error that the client gets for its words.
_FAILURES: dict[str, tuple[type[CorosrvError] | None, Callable[[str], CorosrvError]]] = {
    "invalid_input": (CallRefused, lambda words: CallRefused(words or "the handler refused its input")),
    "not_found": (
        NotFound,
        lambda words: NotFound(words or "the handler found nothing of this name", None, "not_found"),
    ),
    "conflict": (
        Conflict,
        lambda words: Conflict(words or "the handler's call cannot be made as things stand", None, "conflict"),
    ),
    "unavailable": (Unavailable, lambda words: Unavailable(words or "the handler is not available now")),
    "cancelled": (CallCancelled, lambda words: CallCancelled(words or "the call was cancelled")),
    "deadline": (DeadlinePassed, lambda words: DeadlinePassed(words or "the call's time is over")),
    "failed": (None, lambda words: HandlerFailed(HANDLER_FAILED)),
}


def failure_kind(error: BaseException) -> str:
    """Returns the kind of a CallFailure: `failed` for an error that is not for the client."""
    return next((kind for kind, (known, _) in _FAILURES.items() if known and isinstance(error, known)), "failed")


def error_of_failure(kind: str, message: str) -> CorosrvError:
    """Returns the error of a CallFailure. The words of an exception that is no answer are not in it.

    Raises ProtocolError for an unknown kind.
    """
    if kind not in _FAILURES:
        raise ProtocolError(f"a call failed with the unknown kind {kind[:80]!r}")
    return _FAILURES[kind][1](message[:MAX_WORDS])
