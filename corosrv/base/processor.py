"""The processor's time: how long the garbage collector takes, limits for one computation, and turns for long ones.

The collector holds the GIL while every other thread waits, so `GarbageTimes` measures it. `ProcessorLimit` counts the
time of its own thread alone. A long computation in the hub calls `Turns` between its steps, which lets other greenlets
run.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import get_native_id
from typing import NamedTuple, TypeVar

_N_KEPT = 16


class Collection(NamedTuple):
    """One run of the collector. Seconds of the monotonic clock."""

    generation: int
    began: float
    seconds: float


@dataclass(slots=True)
class GenerationTotals:
    """Sums over all collections of one generation."""

    n: int = 0
    seconds: float = 0.0
    longest: float = 0.0  # seconds


class GarbageTimes:
    """Measures all collections but the smallest, which are too short to matter. One for each process.

    Measures nothing before watch(). `totals` are kept by generation.
    """

    def __init__(self) -> None:
        self.totals = {1: GenerationTotals(), 2: GenerationTotals()}
        self._latest: deque[Collection] = deque(maxlen=_N_KEPT)
        self._began = 0.0
        self._thread_began = 0.0
        self._by_thread: dict[int, float] = {}

    def watch(self) -> None:
        """Starts measuring. Calling it twice is harmless."""
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 0:
            return
        if phase == "start":
            self._thread_began = time.thread_time()
            self._began = time.monotonic()
        elif self._began:  # else it began before we watched
            self._note(info["generation"])

    def _note(self, generation: int) -> None:
        collection = Collection(generation, self._began, time.monotonic() - self._began)
        self._latest.append(collection)
        thread = get_native_id()
        seconds = time.thread_time() - self._thread_began
        self._by_thread[thread] = self._by_thread.get(thread, 0.0) + seconds
        totals = self.totals[generation]
        totals.n += 1
        totals.seconds += collection.seconds
        totals.longest = max(totals.longest, collection.seconds)

    def longest_since(self, moment: float) -> Collection | None:
        """Returns the longest of the last collections that ended after this moment of the monotonic clock."""
        recent = (collection for collection in self._latest if collection.began + collection.seconds > moment)
        return max(recent, key=lambda collection: collection.seconds, default=None)

    def thread_seconds(self) -> float:
        """Returns the processor time of collections in the calling thread, whichever thread's garbage they freed."""
        return self._by_thread.get(get_native_id(), 0.0)


garbage_times = GarbageTimes()


def thread_seconds() -> float:
    """Returns the processor time of the calling thread, without the garbage collector's, which serves all threads."""
    return time.thread_time() - garbage_times.thread_seconds()


class ProcessorLimit:
    """A limit of processor seconds for one computation of one thread, counted from the last start().

    A short computation never asks for the processor's time: that is a system call, at which the system likes to run
    somebody else. It is read when half of the seconds have passed by the clock, and from then on the other half is
    counted. So a computation that goes on looking may use half of its seconds at least, and all of them at most.
    """

    __slots__ = ("_due", "_end", "_half")

    def __init__(self, seconds: float) -> None:
        self._half = seconds / 2
        self.start()

    def start(self) -> None:
        self._due = time.monotonic() + self._half
        self._end: float | None = None  # by the processor's time

    def is_used_up(self) -> bool:
        """Returns whether the computation has used its seconds. Never waits."""
        if time.monotonic() < self._due:
            return False
        used = thread_seconds()
        if self._end is None:
            self._end = used + self._half
        # The processor's time cannot be ahead of the clock.
        self._due = time.monotonic() + max(self._end - used, 0.0)
        return used > self._end


_TURN = 0.004  # seconds

Item = TypeVar("Item")


class Turns:
    """Divides a greenlet's long computation into turns of some milliseconds; between them other greenlets run.

    Without a hub, or in the hub's own greenlet, the computation is one turn. Does not import gevent in a process that
    has not: such a process has no greenlets.
    """

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.monotonic()

    def give_way(self) -> bool:
        """Lets other greenlets run if this turn has lasted long enough. Returns whether it did."""
        if time.monotonic() - self._began < _TURN:
            return False
        if has_others := _is_greenlet():
            import gevent

            gevent.sleep(1e-6)  # 0 would not poll the sockets: greenlets that wait for one would go on waiting
        self._began = time.monotonic()
        return has_others

    def among(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items. Gives way after each."""
        for item in items:
            yield item
            self.give_way()


def _is_greenlet() -> bool:
    """Returns whether a hub can run other greenlets while this computation pauses."""
    if "gevent.hub" not in sys.modules:
        return False
    import gevent.hub
    from gevent._hub_local import get_hub_if_exists

    hub = get_hub_if_exists()
    return hub is not None and gevent.hub.getcurrent() is not hub
