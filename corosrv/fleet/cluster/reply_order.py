"""Decides which replies to a call of the shared queue reach its client, where several fronts may have run it."""

from __future__ import annotations

from enum import Enum


class ReplyFate(Enum):
    """Lists what becomes of a reply."""

    TAKE = "take"  # it goes to the client
    DROP = "drop"  # another delivery has the client
    LOST = "lost"  # the delivery that has the client will send no more: the client gets an error


class ReplyOrder:
    """Follows the first delivery that sends something, so that no answer is put together of two."""

    def __init__(self) -> None:
        self._delivery: int | None = None

    @property
    def has_begun(self) -> bool:
        """Tells whether a piece of an answer went to the client."""
        return self._delivery is not None

    def chunk(self, delivery: int) -> ReplyFate:
        """Judges a piece of an answer."""
        if self._delivery is None:
            self._delivery = delivery
        return ReplyFate.TAKE if delivery == self._delivery else ReplyFate.DROP

    def end(self, delivery: int) -> ReplyFate:
        """Judges an end, after which the queue has the call no more: no delivery can end it another time."""
        return ReplyFate.TAKE if self._delivery in (None, delivery) else ReplyFate.LOST
