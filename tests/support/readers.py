"""A reader whose chunks a test hands over, for whatever stands behind one."""

from collections.abc import Iterator
from types import TracebackType

import gevent.queue

from corosrv.base.errors import CorosrvError, ReadTimeout
from corosrv.contracts.jobs import Chunk, Finish, Sink


class HandDrivenReader:
    """A corosrv.contracts.jobs.Reader for greenlets: gives what was given to it, in the pieces it was given in."""

    def __init__(self, n_tasks: int = 1) -> None:
        self.is_cancelled = False
        self.n_closed = 0
        self._n_unfinished = n_tasks
        self._pieces: gevent.queue.SimpleQueue = gevent.queue.SimpleQueue()

    def give(self, *chunks: Chunk) -> None:
        """What the next take gets at once."""
        self._pieces.put(list(chunks))

    def fail(self, error: CorosrvError) -> None:
        """What the next take raises."""
        self._pieces.put(error)

    @property
    def is_finished(self) -> bool:
        return self._n_unfinished == 0

    def take(self, timeout: float | None = None) -> list[Chunk]:
        if self.is_finished:
            return []
        try:
            piece = self._pieces.get(timeout=timeout)
        except gevent.queue.Empty:
            raise ReadTimeout("nothing to read") from None
        if isinstance(piece, CorosrvError):
            raise piece
        self._n_unfinished -= sum(chunk.finish is not None for chunk in piece)
        return piece

    def pump(self, sink: Sink, timeout: float | None = None) -> None:
        while not self.is_finished and sink(self.take(timeout)):
            pass

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.give(*(Chunk(index, "", 0, Finish.CANCELLED) for index in range(self._n_unfinished)))

    def close(self) -> None:
        self.n_closed += 1

    def __iter__(self) -> Iterator[Chunk]:
        while chunks := self.take():
            yield from chunks

    def __enter__(self) -> "HandDrivenReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
