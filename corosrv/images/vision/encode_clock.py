"""Counts the time in which an encoder process could run: its encode is late, or stands still, by that clock alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WORKS = 0.02  # processor time for the time in which a process could run; one with less does not get on


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds for which a thread computed, and for which it could have, but had no processor."""

    computed: float
    starved: float


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Holds how long a process had run, waited and been held by a moment, in seconds."""

    at: float  # of time.monotonic()
    held: float  # for which the decode loop kept such processes stopped, see EncoderTurns
    threads: Mapping[int, ThreadTimes]  # empty where the kernel does not tell


def read_threads(pid: int) -> dict[int, ThreadTimes]:
    """Asks the kernel for the times of a process. Takes some ten microseconds for each thread."""
    try:
        return {int(thread.name): _read_thread(thread) for thread in Path(f"/proc/{pid}/task").iterdir()}
    except (OSError, ValueError):  # it has just ended, or the kernel keeps no such statistics
        return {}


def _read_thread(thread: Path) -> ThreadTimes:
    computed, starved, _ = (thread / "schedstat").read_text().split()
    return ThreadTimes(int(computed) / 1e9, int(starved) / 1e9)


class EncodeClock:
    """Counts seconds in which one process could run: it was neither held nor without a processor."""

    def __init__(self, reading: ProcessReading) -> None:
        self.now = 0.0
        self._reading = reading
        self._worked_at = 0.0

    def advance(self, reading: ProcessReading) -> float:
        """Moves on to a later reading of the same process, and returns the time."""
        last, self._reading = self._reading, reading
        computed, starved = 0.0, 0.0
        for thread, times in reading.threads.items():
            before = last.threads.get(thread, ThreadTimes(0.0, 0.0))
            computed += times.computed - before.computed
            starved = max(starved, times.starved - before.starved)
        could_run = max(0.0, reading.at - last.at - (reading.held - last.held) - starved)
        self.now += could_run
        if not reading.threads or computed >= WORKS * could_run:
            self._worked_at = self.now
        return self.now

    def begin_encode(self) -> None:
        """Notes that there is something to do from now on: a process that had nothing to do did not stand still."""
        self._worked_at = self.now

    @property
    def idle(self) -> float:
        """The time for which the process has not worked."""
        return self.now - self._worked_at
