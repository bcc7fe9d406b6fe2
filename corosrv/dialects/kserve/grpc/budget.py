"""Bounds the bytes of requests in memory, of all calls together, and gives the memory of large ones back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Any

import grpc

from corosrv.dialects.kserve.grpc.guard import CallStatus, StatusError

LARGE = 1 << 20  # bytes; after calls with so many the process gives freed memory back to the system
_TRIM_AFTER = 1.0  # seconds
_KEPT = 64 << 20  # bytes of freed memory that the allocator keeps until then
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LOOK = 0.05  # seconds
_N_LOOKS = 5  # after which a message that has not come is taken for a large one
_LONGEST = 120.0  # seconds that a message may take from then on
_UNDISTURBED = 5.0  # of them, after which it makes room for others that are there


def keep_freed_memory() -> None:
    """Makes glibc keep what is freed until it is trimmed: each large message would get all of its pages anew."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT // 2)  # the most that it takes


class MessageBudget:
    """Counts the bytes of all requests, from when they were read until their calls end. Belongs to one event loop."""

    def __init__(self, limit: int, max_message: int) -> None:
        """`max_message`: bytes that one request may have."""
        self.limit = limit
        self.max_message = min(max_message, limit)
        self.n_bytes = 0
        self._reading: dict[MessageShare, int] = {}  # whose messages are read, and how often they were looked at
        self._is_looking = False
        self._late: dict[MessageShare, float] = {}  # whose messages have not come, and since when they wait for them
        self._is_trim_due = False

    def share(self) -> MessageShare:
        """Returns what one call has of the budget, at first nothing. Leaving its `with` block gives it back."""
        return MessageShare(self)

    def take(self, n_bytes: int) -> None:
        """Counts bytes, if need be in place of those of late messages. Raises StatusError where they are too many."""
        while self.n_bytes + n_bytes > self.limit and (late := self._longest_late()) is not None:
            late.give_way()
        if self.n_bytes + n_bytes > self.limit:
            self.trim_soon()
            raise StatusError(
                CallStatus(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"the messages of all calls at once exceed the {self.limit} bytes allowed; try again",
                    retry_after=1,
                )
            )
        self.n_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        self.n_bytes -= n_bytes
        if n_bytes >= LARGE:
            self.trim_soon()

    def watch(self, share: MessageShare) -> None:
        """Tells a share when its message is late, unless it is unwatched before.

        Looks several times: in a loop that is busy time goes by without a look.
        """
        self._reading[share] = 0
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(_LOOK, self._look)

    def unwatch(self, share: MessageShare) -> None:
        self._reading.pop(share, None)

    def _look(self) -> None:
        for share, n_looks in list(self._reading.items()):
            self._reading[share] = n_looks + 1
            if n_looks + 1 > _N_LOOKS:  # the first comes at any time within the interval
                self.unwatch(share)
                share.wake()
        self._is_looking = bool(self._reading)
        if self._is_looking:
            asyncio.get_running_loop().call_later(_LOOK, self._look)

    def note_late(self, share: MessageShare) -> None:
        """Notes that a message is late; see forget_late."""
        self._late[share] = asyncio.get_running_loop().time()

    def forget_late(self, share: MessageShare) -> None:
        """Notes that it has come, or is waited for no more."""
        self._late.pop(share, None)

    def _longest_late(self) -> MessageShare | None:
        share, since = next(iter(self._late.items()), (None, 0.0))
        return share if asyncio.get_running_loop().time() - since >= _UNDISTURBED else None

    def trim_soon(self) -> None:
        """Gives what was freed back to the system in a moment: the allocator would keep it. Never waits."""
        if not self._is_trim_due:
            self._is_trim_due = True
            asyncio.get_running_loop().call_later(_TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        self._is_trim_due = False
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc's alone
            asyncio.get_running_loop().run_in_executor(None, trim, 0)


class MessageShare:
    """Holds what one call takes of the budget."""

    def __init__(self, budget: MessageBudget) -> None:
        self._budget = budget
        self._n_bytes = 0
        self._news: asyncio.Future[None]  # of its message: it has come, or it is late
        self._gave_way: asyncio.Future[None] | None = None  # once its message is late

    def __enter__(self) -> MessageShare:
        return self

    def __exit__(self, *exception: object) -> None:
        self.resize(0)

    async def read(self, context: Any) -> bytes:
        """Reads the only message of a call; b"" if there is none. Waits. Raises StatusError where it has no room.

        Nobody knows how long a message is before all of it is there. One that comes slowly is taken for the largest
        until then, so that large ones that come at the same time have room together; after a while others that are
        there may have its room.
        """
        self._news = asyncio.get_running_loop().create_future()
        reading = asyncio.ensure_future(context.read())  # never cancelled: grpcio would not free what has come
        reading.add_done_callback(self._on_read)
        self._budget.watch(self)
        try:
            await self._news
        finally:
            self._budget.unwatch(self)
        if not reading.done():
            self.resize(self._budget.max_message)
            await self._wait_for(reading)
        data = reading.result()
        message: bytes = b"" if data is grpc.aio.EOF else data
        self.resize(len(message))
        return message

    def _on_read(self, reading: asyncio.Future[Any]) -> None:
        if not reading.cancelled():
            reading.exception()  # which asyncio would write into the log if nobody asked for it
        self.wake()

    def wake(self) -> None:
        """Ends the first wait for its message."""
        if not self._news.done():
            self._news.set_result(None)

    async def _wait_for(self, reading: asyncio.Future[Any]) -> None:
        """Waits for a message that is late. Raises StatusError."""
        self._gave_way = asyncio.get_running_loop().create_future()
        self._budget.note_late(self)
        try:
            waiting = (reading, self._gave_way)
            await asyncio.wait(waiting, timeout=_LONGEST, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._budget.forget_late(self)
        if self._gave_way.done():
            words = "the request came slowly, and others needed the room of its message; try again"
            raise StatusError(CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, words, retry_after=1))
        if not reading.done():
            words = f"the request did not come within {_LONGEST:.0f} seconds"
            raise StatusError(CallStatus(grpc.StatusCode.DEADLINE_EXCEEDED, words))

    def give_way(self) -> None:
        """Gives its room back, and ends the wait for its message."""
        assert self._gave_way is not None
        self._budget.forget_late(self)
        self._gave_way.set_result(None)
        self.resize(0)

    def resize(self, n_bytes: int) -> None:
        """Counts so many bytes from now on. Raises StatusError, and counts as many as before then."""
        if n_bytes > self._n_bytes:
            self._budget.take(n_bytes - self._n_bytes)
        else:
            self._budget.give_back(self._n_bytes - n_bytes)
        self._n_bytes = n_bytes
