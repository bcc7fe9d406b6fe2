"""Decides from its restarts whether an encoder process is worth waiting for."""

from __future__ import annotations

import math
from collections import deque

MOST_RESTARTS = 3
WINDOW = 60.0  # seconds in which so many restarts are too many
RECOVERY = 60.0  # seconds that a process has to serve before it is trusted again


class StabilityRecord:
    """Records the restarts of one encoder. The caller passes the time in."""

    def __init__(self) -> None:
        self._restarts: deque[float] = deque(maxlen=MOST_RESTARTS)
        self._serves_since = math.inf
        self._is_unstable = False

    def note_restart(self, now: float) -> None:
        """Records that a process follows one whose death was recorded."""
        self._restarts.append(now)
        if len(self._restarts) == MOST_RESTARTS and now - self._restarts[0] <= WINDOW:
            self._is_unstable = True

    def note_ready(self, now: float) -> None:
        """Records that the process serves."""
        self._serves_since = now

    def note_death(self) -> None:
        """Records that the process has ended."""
        self._serves_since = math.inf

    def is_unstable(self, now: float) -> bool:
        """Returns whether there were too many restarts, and none has served for long enough since."""
        if now - self._serves_since >= RECOVERY:
            self._is_unstable = False
        return self._is_unstable
