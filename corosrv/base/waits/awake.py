"""A clock that stands still while the process cannot run: stopped, frozen with its container, or its hub blocked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds in which this process could serve. Limits on clients count these: a pause is not the client's fault.

    Whoever serves calls `beat` once a second, from the hub. A beat that comes late tells of a pause, and so does one
    that is overdue now: then nothing is counted since the clock was last read. Without beats it is the monotonic
    clock. Never goes backwards, never waits.
    """

    __slots__ = ("_highest", "_interval", "_late_from", "_lost", "_read")

    def __init__(self, read: Callable[[], float] = time.monotonic, interval: float = 1.25) -> None:
        """`interval`: seconds after which the next beat is late."""
        self._read = read
        self._interval = interval
        self._late_from = math.inf
        self._lost = 0.0
        self._highest = 0.0  # that was ever returned

    def now(self) -> float:
        """Returns the time, in seconds from some fixed moment."""
        read = self._read()
        if read <= self._late_from:
            self._highest = read - self._lost
        return self._highest

    def beat(self) -> None:
        """Marks that the hub runs now."""
        read = self._read()
        if read > self._late_from:
            self._lost = read - self._highest
        self._late_from = read + self._interval

    def stop(self) -> None:
        """Runs on without beats, as a monotonic clock does."""
        self.beat()
        self._late_from = math.inf


# The clock of the process: its worker beats it.
awake_clock = AwakeClock()
