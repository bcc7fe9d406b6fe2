"""Defines the receiving end of one job, as adapters know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, TypeVar

Item = TypeVar("Item")

# Takes over items; says whether it wants more.
Sink = Callable[[list[Item]], bool]


def take_first(pump: Callable[[Sink[Item], float | None], None], timeout: float | None) -> list[Item]:
    """Returns what a reader's `pump` hands over first, nothing if it ends before. Waits, and raises, as it does."""
    items: list[Item] = []

    def keep(arrived: list[Item]) -> bool:
        nonlocal items
        items = arrived
        return False

    pump(keep, timeout)
    return items


class Reader(Protocol[Item]):
    """The receiving end of one job's results: chunks of an engine, answers of a predictor, events of a prediction.

    Iterating yields items until the last one. Leaving the `with` block closes the reader. Belongs to the thread that
    made it; only `cancel` may be called from others.
    """

    @property
    def is_finished(self) -> bool:
        """The last item was taken, or nobody will take it."""

    def take(self, timeout: float | None = None) -> list[Item]:
        """Returns all unread items, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """

    def pump(self, sink: Sink[Item], timeout: float | None = None) -> None:
        """Hands all unread items to `sink` each time there are some, until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without items.
        """

    def cancel(self) -> None:
        """Ends what is unfinished, in its own time; its last items say so. Never waits; twice is harmless."""

    def close(self) -> None:
        """Cancels, and drops what is unread or yet to come. Twice is harmless."""

    def __iter__(self) -> Iterator[Item]:
        while items := self.take():
            yield from items

    def __enter__(self) -> Reader[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
