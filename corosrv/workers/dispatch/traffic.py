"""Counts the calls of one key."""

from __future__ import annotations

from collections import Counter

from corosrv.base.errors import CorosrvError
from corosrv.workers.dispatch.estimates import COUNTS, SECONDS, Distribution, EventRate, RunningMean, ServiceTimes


class KeyTraffic:
    """Holds counters and estimates of one key. Times are in seconds.

    The depth of its queue is n_admitted - n_dispatched - n_left at any time.
    """

    def __init__(self) -> None:
        self.n_admitted = 0  # times that a call began to wait, or was handed over without
        self.n_dispatched = 0  # times that a call was handed over
        self.n_left = 0  # calls that ended while they waited
        self.n_in_flight = 0  # hand-overs that have not ended, each of one call or one batch
        self.outcomes: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.rate = EventRate()  # of arrivals
        self.wait = RunningMean()
        self.service = RunningMean()  # of one call; of a batch, each has its share
        self.times = ServiceTimes()  # of hand-overs
        self.waits = Distribution(SECONDS)
        self.services = Distribution(SECONDS)
        self.batch_sizes = Distribution(COUNTS)

    def count_start(self, n_calls: int, now: float) -> None:
        self.times.start(now)
        self.n_dispatched += n_calls
        self.n_in_flight += 1
        self.batch_sizes.add(n_calls)

    def count_wait(self, seconds: float) -> None:
        self.wait.add(seconds)
        self.waits.add(seconds)

    def count_finish(self, n_calls: int, started_at: float, now: float, is_measured: bool, is_cut: bool) -> None:
        """Counts the end of a hand-over.

        `is_measured`: its duration says how long its handler takes; `is_cut`: or longer, because it was told to end.
        """
        self.n_in_flight -= 1
        self.times.finish(started_at, now, is_measured, is_cut)
        seconds = now - started_at
        if is_measured:
            self.service.add(seconds / n_calls)
            self.services.add(seconds)

    def count_end(self, error: CorosrvError | None) -> None:
        self.outcomes[outcome_of(error)] += 1


def outcome_of(error: CorosrvError | None) -> str:
    """Returns a word for how a call ended: `ok`, or what went wrong."""
    if error is None:
        return "ok"
    return error.code or error.kind.value.replace(" ", "_")
