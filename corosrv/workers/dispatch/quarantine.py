"""Decides whether a handler gets calls, by how often its worker processes died while it ran."""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

from corosrv.workers.dispatch.estimates import RecentCount

WINDOW = 60.0  # seconds over which crashes are compared with calls
MAX_CRASHES = 2  # within the window, that put a handler into quarantine
MIN_SHARE = 0.01  # of crashes among its calls; below, somebody else may have killed the processes of a busy handler
FIRST_PAUSE = 10.0  # seconds; doubled with every crash of a trial call
LONGEST_PAUSE = 320.0
N_TRIALS = 2  # trial calls that have to go well, one after the other


class QuarantineState(Enum):
    """States of a handler."""

    FREE = "free"  # calls pass
    QUARANTINED = "quarantined"  # no call passes, until the pause is over
    TRYING = "trying"  # one call at a time passes


class Quarantine:
    """Keeps calls from a handler that kills its processes. The time is passed in and never goes backwards.

    "Well" is every call whose process has lived on, also one that was refused or that raised.
    """

    def __init__(self) -> None:
        self._state = QuarantineState.FREE
        self._crashes: deque[float] = deque(maxlen=MAX_CRASHES)  # their times
        self._good_calls = RecentCount(WINDOW)
        self._n_pauses = 0  # in a row
        self._n_well = 0  # trials in a row
        self._has_trial = False  # a trial call waits or runs
        self._ends_at = -math.inf

    @property
    def is_closed(self) -> bool:
        """True while no call passes, as of the time that was passed in last."""
        return self._state is QuarantineState.QUARANTINED

    def state(self, now: float) -> QuarantineState:
        """Returns its state; a handler whose pause is over is TRYING."""
        if self._state is QuarantineState.QUARANTINED and now >= self._ends_at:
            self._state = QuarantineState.TRYING
            self._n_well = 0
            self._has_trial = False
        return self._state

    def admits(self, now: float) -> bool:
        """Returns whether a call may come in now."""
        state = self.state(now)
        return state is QuarantineState.FREE or (state is QuarantineState.TRYING and not self._has_trial)

    def pause_left(self, now: float) -> float:
        """Returns the seconds after which a refused call may be tried again; 1 while a trial call runs."""
        return max(self._ends_at - now, 1.0)

    def begin(self) -> bool:
        """Records that a call comes in which was admitted, and returns whether it is a trial."""
        if self._state is not QuarantineState.TRYING:
            return False
        self._has_trial = True
        return True

    def end_trial(self, is_well: bool) -> None:
        """Records the end of a trial call. Not well is one that says nothing: it never ran, or its client left."""
        if self._state is not QuarantineState.TRYING:
            return
        self._has_trial = False
        self._n_well += is_well
        if self._n_well >= N_TRIALS:
            self._state = QuarantineState.FREE
            self._crashes.clear()
            self._n_pauses = 0

    def count_well(self, n_calls: int, now: float) -> None:
        """Records calls that have ended and left their process alive."""
        self._good_calls.add(n_calls, now)

    def suspicion(self, now: float) -> float:
        """Returns how likely it is that this handler, of those that ran, has killed their process."""
        self._forget_crashes(now)
        return (len(self._crashes) + 1) / (self._good_calls.total(now) + 1)

    def crash(self, now: float) -> bool:
        """Records that it killed its process; returns whether a pause begins with that.

        Late crashes of calls that began before the pause change nothing.
        """
        self._forget_crashes(now)
        state = self.state(now)
        if state is QuarantineState.QUARANTINED:
            return False
        self._crashes.append(now)
        n_crashes = len(self._crashes)
        is_often = n_crashes == MAX_CRASHES and n_crashes >= MIN_SHARE * self._good_calls.total(now)
        if state is QuarantineState.FREE and not is_often:
            return False
        self._state = QuarantineState.QUARANTINED
        self._ends_at = now + min(FIRST_PAUSE * 2.0**self._n_pauses, LONGEST_PAUSE)
        self._n_pauses = min(self._n_pauses + 1, 16)
        return True

    def _forget_crashes(self, now: float) -> None:
        while self._crashes and self._crashes[0] <= now - WINDOW:
            self._crashes.popleft()
