"""Defines records of idempotency keys that several servers share."""

from __future__ import annotations

from typing import Protocol

from corosrv.base.errors import Conflict, KeyReused

RETRY_AFTER = 1  # seconds, told while the first call still runs


class SharedClaim(Protocol):
    """Gives the right to answer the first call under a key among all servers. It ends once. Nothing here waits."""

    def finish(self, answer: bytes) -> None:
        """Has the answer kept, soon."""

    def drop(self) -> None:
        """Has the key freed, soon: there is no answer to be kept."""

    def abandon(self) -> None:
        """Has the key freed, later. May be called while garbage is collected."""


class SharedRecords(Protocol):
    """Keeps the answers of keys for several servers."""

    def begin(self, caller: str, key: str, digest: bytes) -> bytes | SharedClaim | None:
        """Returns the answer that is kept, or the claim of a new call; None while records cannot be reached. Waits.

        Raises KeyReused if something else was asked under the key, and Conflict while the first call still runs.
        """


def key_reused() -> KeyReused:
    """Makes the error for a key that was used for another request."""
    return KeyReused("the Idempotency-Key was used for another request; choose a new one")


def still_running() -> Conflict:
    """Makes the error for a key whose first request is still running."""
    error = Conflict("the first request with this Idempotency-Key is still running", None, "still_running")
    error.retry_after = RETRY_AFTER
    return error
