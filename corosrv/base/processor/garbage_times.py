"""Measures how long Python's garbage collector holds the GIL, while every other thread waits."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass
from threading import get_native_id
from typing import NamedTuple

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
