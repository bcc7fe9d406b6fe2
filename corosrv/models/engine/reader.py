"""Reads one job's chunks: waits on its eventfd, takes what is there, cancels on close.

A reader for which the process had no descriptor left is looked at every 10 ms instead. All else holds for it as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from corosrv.base.errors import NoDescriptor, ReadTimeout, UsedAfterClose, WrongThread
from corosrv.base.waits import INTERVAL, TimedOut, Waiter, thread_id, waiter
from corosrv.contracts.jobs import Chunk, Sink
from corosrv.contracts.jobs.reader import take_first
from corosrv.models.engine.binding import NativeReader


async def _readable(native: NativeReader) -> None:
    """Returns when there is something to take. Watches it no longer than that: the loop would spin otherwise."""
    import asyncio  # late: a tenth of the server's start, and whoever awaits this has it already

    if (fd := native.fd) < 0:
        while not native.has_chunks():
            await asyncio.sleep(INTERVAL)
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)


class Reader:
    """The receiving end of one job on the engine; see corosrv.contracts.jobs.Reader for the contract.

    The same object serves a greenlet (`for chunk in reader`, waits through the hub), a plain thread (the same, blocks
    the thread) and an asyncio task (`async for chunk in reader`). It belongs to the thread that made it; `cancel` may
    be called from any.
    """

    __slots__ = ("__weakref__", "_n_unfinished", "_native", "_sink", "_thread", "_waiter", "image_tokens")

    def __init__(self, native: NativeReader, n_tasks: int) -> None:
        self._native: NativeReader | None = native
        self._n_unfinished = n_tasks
        self._thread = thread_id()
        self._waiter: Waiter | None = None
        self._sink: Sink[Chunk] | None = None  # of the pump that waits
        self.image_tokens: Sequence[int] = ()  # of each task's prompt, for its terminal chunk

    def fileno(self) -> int:
        """Returns the eventfd, readable when there is something to take. Not to be closed or read by others.

        Raises NoDescriptor for a reader that has none; it can be read all the same.
        """
        if (fd := self._open().fd) < 0:
            raise NoDescriptor("no file descriptor was left for this reader: raise the limit (ulimit -n)")
        return fd

    def take(self, timeout: float | None = None) -> list[Chunk]:
        """Returns all unread chunks, at least one; an empty list once every task has ended. Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[Chunk], timeout: float | None = None) -> None:
        """Hands all unread chunks to `sink` each time there are some; ends when that returns False, and at the end.

        Waits; meanwhile `sink` is called in the hub, without the switches that waking a greenlet costs, and must not
        wait itself. Raises what it raises, and ReadTimeout after `timeout` seconds without chunks.
        """
        # Waits first, also when chunks are there already: a stream with much to say gives way to the others between
        # two of its pieces.
        native = self._owned()
        if self._n_unfinished == 0:
            return
        if self._waiter is None:
            self._waiter = waiter(native.fd, native.has_chunks)
        waits_before, self._sink = self._sink, sink
        try:
            self._waiter.wait(timeout, self._look)
        except TimedOut:
            raise ReadTimeout(f"nothing to read for {timeout:g} s") from None
        finally:
            self._sink = waits_before

    def _look(self) -> bool:
        """Hands what is unread to the sink; True when the pump is over.

        A method and no function within pump(), which would be 300 bytes more of each stream that waits.
        """
        sink, watching = self._sink, self._waiter
        assert sink is not None
        assert watching is not None
        chunks = self._open().take(not watching.is_edge_triggered)
        if not chunks:
            return False
        chunks = self._count(chunks)
        return not sink(chunks) or self._n_unfinished == 0

    def take_nowait(self) -> list[Chunk]:
        """Returns all unread chunks, perhaps none. Never waits."""
        return self._count(self._owned().take())

    def _count(self, chunks: list[Chunk]) -> list[Chunk]:
        for place, chunk in enumerate(chunks):
            if chunk.finish is not None:
                self._n_unfinished -= 1
                if self.image_tokens:
                    chunks[place] = msgspec.structs.replace(chunk, image_tokens=self.image_tokens[chunk.index])
        return chunks

    @property
    def is_finished(self) -> bool:
        """True once every task has had its terminal chunk, and it was taken."""
        return self._n_unfinished == 0

    def cancel(self) -> None:
        """Ends what is unfinished within one step. Any thread; after close() it does nothing."""
        if (native := self._native) is not None:
            native.cancel()

    def end_thoughts(self) -> None:
        """Ends thoughts that have a budget as if it were spent. Any thread; after close() it does nothing."""
        if (native := self._native) is not None:
            native.end_thoughts()

    def close(self) -> None:
        """Cancels, and gives back the descriptor. Twice is harmless."""
        native, self._native = self._native, None
        if native is None:
            return
        if self._waiter is not None:
            self._waiter.close()  # before the descriptor: its number may be somebody else's the moment it is closed
        native.close()

    def __del__(self) -> None:
        # Dropped without close(). Its watcher must not outlive the descriptor (libev aborts the process when it meets
        # one that does), and only the thread that waits may touch it; garbage may be collected in any.
        if self._waiter is None or self._thread == thread_id():
            self.close()
        else:
            self._waiter.call_soon(self.close)

    def _open(self) -> NativeReader:
        if self._native is None:
            raise UsedAfterClose("this reader is closed; submit another job")
        return self._native

    def _owned(self) -> NativeReader:
        if self._thread != thread_id():
            raise WrongThread("a reader belongs to the thread that made it; submit the job in the thread that reads")
        return self._open()

    def __iter__(self) -> Iterator[Chunk]:
        while chunks := self.take():
            yield from chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        native = self._owned()
        while self._n_unfinished:
            await _readable(native)
            for chunk in self.take_nowait():
                yield chunk

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
