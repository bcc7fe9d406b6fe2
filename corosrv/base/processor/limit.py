"""Limits one computation by the processor time of its thread, which other threads do not use up."""

from __future__ import annotations

import time

from corosrv.base.processor.garbage_times import garbage_times


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
