"""How long one computation may take, in seconds of its thread's processor: whoever else computes takes nothing away."""

from __future__ import annotations

import time

from corosrv.processor.garbage_times import garbage_times


def thread_seconds() -> float:
    """The processor time of the calling thread, without that of the garbage collector, which cleans up for others."""
    return time.thread_time() - garbage_times.thread_seconds()


class ProcessorLimit:
    """Seconds of the processor for one computation of one thread, from the last start() on."""

    __slots__ = ("_due", "_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        self._end = thread_seconds() + self._seconds
        self._due = time.monotonic() + self._seconds

    def is_used_up(self) -> bool:
        """Never waits."""
        # Reading the processor's time costs eight times as much as the clock, and it cannot be ahead of the clock.
        if time.monotonic() < self._due:
            return False
        left = self._end - thread_seconds()
        self._due = time.monotonic() + max(left, 0.0)
        return left < 0
