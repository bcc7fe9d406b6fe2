"""Limits one computation by the processor time of its thread, which other threads do not use up."""

from __future__ import annotations

import time

from corosrv.processor.garbage_times import garbage_times


def thread_seconds() -> float:
    """Returns the processor time of the calling thread, without the garbage collector's, which serves all threads."""
    return time.thread_time() - garbage_times.thread_seconds()


class ProcessorLimit:
    """A limit of processor seconds for one computation of one thread, counted from the last start()."""

    __slots__ = ("_due", "_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        self._end = thread_seconds() + self._seconds
        self._due = time.monotonic() + self._seconds

    def is_used_up(self) -> bool:
        """Returns whether the computation has used more than its seconds. Never waits."""
        # Reading the processor's time costs eight times as much as the clock, and it cannot be ahead of the clock.
        if time.monotonic() < self._due:
            return False
        seconds_left = self._end - thread_seconds()
        self._due = time.monotonic() + max(seconds_left, 0.0)
        return seconds_left < 0
