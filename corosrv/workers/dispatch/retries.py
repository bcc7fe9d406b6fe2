"""Decides which failed calls are tried again, when, and how many of them."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

from corosrv.base.errors import CorosrvError, HandlerFailed, WorkerLost

MAX_ATTEMPTS = 2  # that were handed over
MAX_REFUSALS = 5  # hand-overs of one call that may fail before anything of it has run
FIRST_PAUSE = 0.05  # seconds
PERIOD = 10  # seconds over which calls and retries are compared
SHARE = 0.1  # of the calls of a period, that retries may be
PER_SECOND = 3  # retries that are allowed beside


def may_retry(is_idempotent: bool, error: CorosrvError, n_attempts: int, has_sent: bool, is_batch: bool) -> bool:
    """Returns whether a call may run again that was handed over and then failed. `has_sent`: its client got some of it.

    A deadline, a cancel, a refusal and a handler that raised are answers; only a lost worker is not. `is_batch`: all
    calls of its batch have failed, which one of them may have caused; alone, it may go well.
    """
    is_open = isinstance(error, (WorkerLost, HandlerFailed) if is_batch else WorkerLost)
    return is_idempotent and is_open and n_attempts < MAX_ATTEMPTS and not has_sent


def pause(n_attempts: int, jitter: float) -> float:
    """Returns the seconds before the next attempt. `jitter`: a random number from 0 to 1."""
    return float(FIRST_PAUSE * 2 ** (n_attempts - 1) * jitter)


class RetryBudget:
    """Bounds the retries of a front to a share of its calls, so that they do not feed the overload that caused them.

    All calls that one worker was running when it died count as one: the permits of others bound how many of them run
    again at once. Counts by whole seconds of the time that is passed in, which never goes backwards.
    """

    def __init__(self) -> None:
        self._calls = [0] * PERIOD
        self._retries = [0] * PERIOD
        self._second = 0
        self._deaths: WeakKeyDictionary[object, float] = WeakKeyDictionary()  # when a worker was last lost

    def count_call(self, now: float) -> None:
        self._turn_to(now)
        self._calls[self._second % PERIOD] += 1

    def left(self, now: float) -> float:
        """Returns how many retries are allowed now."""
        self._turn_to(now)
        return SHARE * sum(self._calls) + PER_SECOND * PERIOD - sum(self._retries)

    def spend(self, now: float) -> bool:
        """Takes one retry from the budget; returns False if none is left."""
        if self.left(now) < 1:
            return False
        self._retries[self._second % PERIOD] += 1
        return True

    def spend_for_loss(self, now: float, worker: object, started_at: float) -> bool:
        """Takes what the retry of a call costs that its worker has lost; returns False if it is not left.

        `started_at`: when the worker got the call. Nothing if it got it before its last loss: it is the same one.
        """
        if started_at <= self._deaths.get(worker, -math.inf):
            return True
        if not self.spend(now):
            return False
        self._deaths[worker] = now
        return True

    def _turn_to(self, now: float) -> None:
        second = int(now)
        for passed in range(max(self._second + 1, second - PERIOD + 1), second + 1):
            self._calls[passed % PERIOD] = self._retries[passed % PERIOD] = 0
        self._second = max(self._second, second)
