"""The receiving end of one job, as adapters know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from corosrv.jobs.chunk import Chunk

# Takes over chunks; says whether it wants more.
Sink = Callable[[list[Chunk]], bool]


class Reader(Protocol):
    """The receiving end of one job's results.

    Iterating yields chunks until every task has had its terminal chunk. Leaving the `with` block cancels what is
    unfinished. Belongs to the thread that made it; only `cancel` may be called from others.
    """

    @property
    def is_finished(self) -> bool:
        """Every task has had its terminal chunk, and it was taken."""

    def take(self, timeout: float | None = None) -> list[Chunk]:
        """All unread chunks, at least one; an empty list once every task has ended. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """

    def pump(self, sink: Sink, timeout: float | None = None) -> None:
        """Hands all unread chunks to `sink` each time there are some, until it returns False or every task has ended.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without chunks.
        """

    def cancel(self) -> None:
        """Ends what is unfinished; its terminal chunks say CANCELLED."""

    def close(self) -> None:
        """Cancels, and gives back the reader's descriptor. Twice is harmless."""

    def __iter__(self) -> Iterator[Chunk]: ...

    def __enter__(self) -> Reader: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
