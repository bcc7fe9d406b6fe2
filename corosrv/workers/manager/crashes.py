"""Counts the crashes of a pool's workers: when the next may start, and when the pool is said to loop."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

FIRST_PAUSE = 0.5  # seconds
LONGEST_PAUSE = 30.0
RECOVERY = 60.0  # seconds that a worker is well before the next crash is the first again
LOOP_CRASHES = 5
LOOP_TIME = 60.0  # seconds


class CrashRecord:
    """Records the crashes of one pool. The caller passes the current time in; nothing waits.

    A worker that could not start has crashed as well; one that died while a handler ran has not: that is the handler's
    crash (see corosrv.workers.dispatch.quarantine). One pool's record knows nothing of another's.
    """

    def __init__(self, jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.0)) -> None:
        """`jitter` returns the part of a pause that is waited, so that pools do not restart in step."""
        self._jitter = jitter
        self._n_in_a_row = 0
        self._times: deque[float] = deque(maxlen=LOOP_CRASHES)
        self.retry_at = 0.0  # no start before
        self.is_looping = False
        self.last_reason = ""

    @property
    def has_crashed(self) -> bool:
        """True until a worker was well for long enough."""
        return self._n_in_a_row > 0

    def add(self, now: float, ready_since: float | None = None, reason: str = "") -> float:
        """Records a crash; returns the pause before the next start. `ready_since`: None if it was never ready."""
        self.note_well(now, ready_since)
        self._times.append(now)
        self.last_reason = reason
        self.is_looping = self.is_looping or self._is_loop(now)
        pause = LONGEST_PAUSE if self.is_looping else min(FIRST_PAUSE * 2**self._n_in_a_row, LONGEST_PAUSE)
        self._n_in_a_row += 1
        pause *= self._jitter()
        self.retry_at = max(self.retry_at, now + pause)
        return pause

    def _is_loop(self, now: float) -> bool:
        return len(self._times) == LOOP_CRASHES and now - self._times[0] <= LOOP_TIME

    def note_well(self, now: float, ready_since: float | None) -> None:
        """Forgets the crashes if a worker that followed the last of them has been ready for long enough."""
        if ready_since is None or not self._times or ready_since < self._times[-1]:
            return
        if now - ready_since >= RECOVERY:
            self.forget()

    def forget(self) -> None:
        """Begins again as if no worker had crashed."""
        self._n_in_a_row = 0
        self._times.clear()
        self.is_looping = False
        self.retry_at = 0.0
