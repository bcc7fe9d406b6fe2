"""Decides whether an upstream gets calls, by how its last ones went."""

from __future__ import annotations

import math
from enum import Enum

from corosrv.workers.dispatch.estimates import RecentCount

MAX_FAULTS = 5  # in a row, that open the breaker
WINDOW = 30.0  # seconds over which faults are compared with calls
N_COMPARED = 20  # calls in the window, from which on their share of faults counts
MAX_SHARE = 0.5  # of faults among them, that opens the breaker as well
FIRST_PAUSE = 5.0  # seconds; doubled with every opening
LONGEST_PAUSE = 60.0
N_TRIALS = 2  # trial calls that have to go well, one after the other


class BreakerState(Enum):
    CLOSED = "closed"  # calls pass
    OPEN = "open"  # no call passes, until its pause is over
    TRYING = "trying"  # one call at a time passes


class FaultShare:
    """Compares the faults of the last WINDOW seconds with all calls that ended then. The time is passed in."""

    def __init__(self) -> None:
        self._calls = RecentCount(WINDOW)
        self._faults = RecentCount(WINDOW)

    def count(self, now: float) -> None:
        """Counts a call that has ended well."""
        self._calls.add(1, now)

    def note(self, is_fault: bool, now: float) -> bool:
        """Counts a call that has ended, and returns whether too many of the calls are faults."""
        self.count(now)
        self._faults.add(is_fault, now)
        n_calls = self._calls.total(now)
        return n_calls >= N_COMPARED and self._faults.total(now) >= MAX_SHARE * n_calls


class Breaker:
    """Stops calls to an upstream that fails them, and lets single ones through later to see whether it is well again.

    The time is passed in and never goes backwards; nothing waits. `jitter`: a random number from 0 to 1, so that
    several servers do not come back to the same upstream in the same moment.
    """

    def __init__(self) -> None:
        self._state = BreakerState.CLOSED
        self._n_faults = 0  # in a row
        self._share = FaultShare()  # while it is closed
        self._n_openings = 0  # since it was last closed
        self._n_well = 0  # trials in a row
        self._has_trial = False  # a trial call runs
        self._opens_until = -math.inf
        self._paused_until = -math.inf  # as the upstream itself has asked

    def state(self, now: float) -> BreakerState:
        """Returns its state; one whose pause is over is TRYING."""
        if self._state is BreakerState.OPEN and now >= self._opens_until:
            self._state = BreakerState.TRYING
            self._n_well = 0
            self._has_trial = False
        return self._state

    def lets_pass(self, now: float) -> bool:
        """Returns whether a call may go to the upstream now."""
        if self._state is BreakerState.CLOSED:
            return now >= self._paused_until
        state = self.state(now)
        if state is BreakerState.OPEN or now < self._paused_until:
            return False
        return not self._has_trial

    def next_change(self, now: float) -> float:
        """Returns when calls may pass that may not now, if nothing else happens; infinity if time changes nothing."""
        latest = self._paused_until
        if self._state is BreakerState.OPEN:
            latest = max(latest, self._opens_until)
        return latest if latest > now else math.inf

    def begin(self, now: float) -> bool:
        """Records that a call goes to the upstream, and returns whether it is a trial."""
        if self._state is BreakerState.CLOSED or self.state(now) is not BreakerState.TRYING:
            return False
        self._has_trial = True
        return True

    def succeed(self, is_trial: bool, now: float) -> None:
        """Records that the upstream has answered a call, were it with a refusal."""
        if self._state is BreakerState.CLOSED:
            self._n_faults = 0
            self._share.count(now)
        elif is_trial and self._state is BreakerState.TRYING:
            self._has_trial = False
            self._n_well += 1
            if self._n_well >= N_TRIALS:
                self._state = BreakerState.CLOSED
                self._n_faults = self._n_openings = 0

    def fail(self, is_trial: bool, now: float, jitter: float) -> None:
        """Records a fault of the upstream. Late ones of calls that began before it opened change nothing."""
        if self._state is BreakerState.CLOSED:
            self._n_faults += 1
            if self._share.note(True, now) or self._n_faults >= MAX_FAULTS:
                self._open(now, jitter)
        elif is_trial and self._state is BreakerState.TRYING:
            self._open(now, jitter)

    def forget_trial(self, is_trial: bool) -> None:
        """Records that a call ended without saying anything of the upstream: its client left."""
        if is_trial and self._state is BreakerState.TRYING:
            self._has_trial = False

    def pause(self, ends_at: float) -> None:
        """Stops calls until a time, as the upstream has asked; that is no fault."""
        self._paused_until = max(self._paused_until, ends_at)

    def pause_left(self, now: float) -> float:
        """Returns for how many seconds the upstream has asked to be left alone."""
        return max(self._paused_until - now, 0.0)

    def _open(self, now: float, jitter: float) -> None:
        pause = min(FIRST_PAUSE * 2.0**self._n_openings, LONGEST_PAUSE) * (0.8 + 0.2 * jitter)
        self._state = BreakerState.OPEN
        self._opens_until = now + pause
        self._n_openings = min(self._n_openings + 1, 16)
        self._share = FaultShare()
        self._has_trial = False
