"""Defines the errors that a handler may raise, and the words for them on the wire. Their text reaches the client.

Any other exception fails the call as well; its text goes to the log alone.
"""

from __future__ import annotations

from corosrv.base.errors import CallCancelled as Cancelled
from corosrv.base.errors import CallRefused as InvalidInput
from corosrv.base.errors import Conflict, NotFound, Unavailable
from corosrv.base.errors import DeadlinePassed as DeadlineExceeded

__all__ = ["Cancelled", "DeadlineExceeded", "InvalidInput", "NotFound", "Unavailable", "failure_kind"]

_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (InvalidInput, "invalid_input"),
    (NotFound, "not_found"),
    (Conflict, "conflict"),
    (Unavailable, "unavailable"),
    (Cancelled, "cancelled"),
    (DeadlineExceeded, "deadline"),
)


def failure_kind(error: BaseException) -> str:
    """Returns the kind of a CallFailure: `failed` for an error that is not for the client."""
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "failed")
