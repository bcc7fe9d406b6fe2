"""Turns the failures that workers report into errors for clients."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotFound,
    ProtocolError,
    Unavailable,
)

MAX_WORDS = 4096  # characters of a handler's own words to a client

HANDLER_FAILED = "the handler failed; the server's log says why"

_ERRORS: dict[str, Callable[[str], CorosrvError]] = {
    "invalid_input": lambda words: CallRefused(words or "the handler refused its input"),
    "not_found": lambda words: NotFound(words or "the handler found nothing of this name", None, "not_found"),
    "conflict": lambda words: Conflict(words or "the handler's call cannot be made as things stand", None, "conflict"),
    "unavailable": lambda words: Unavailable(words or "the handler is not available now"),
    "cancelled": lambda words: CallCancelled(words or "the call was cancelled"),
    "deadline": lambda words: DeadlinePassed(words or "the call's time is over"),
    "failed": lambda words: HandlerFailed(HANDLER_FAILED),
}


def error_of(kind: str, message: str) -> CorosrvError:
    """Returns the error of a CallFailure. The words of an exception that is no answer are not in it.

    Raises ProtocolError for an unknown kind.
    """
    if kind not in _ERRORS:
        raise ProtocolError(f"a call failed with the unknown kind {kind[:80]!r}")
    return _ERRORS[kind](message[:MAX_WORDS])
