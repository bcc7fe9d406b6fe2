"""Estimates of one key from its calls: service times, rates, counts and histograms. Pure; the time is passed in.

`KeyTraffic` holds them all. `Backoff` computes the pause before the next try, after tries that failed in a row.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.terms import TracePart
from corosrv.contracts.metrics import Bucket, Exemplars


class Backoff:
    """Doubles the pause with every failure, up to a limit; a try that went well for long enough resets it.

    The caller passes the current time in; nothing waits.
    """

    def __init__(self, first: float, longest: float, recovery: float = 0.0) -> None:
        """Takes seconds. `recovery`: how long a try has to go well before its failure counts as the first again."""
        self._first = first
        self._longest = longest
        self._recovery = recovery
        self._pause = first
        self._well_since: float | None = None

    def succeed(self, now: float) -> None:
        """Records that the current try goes well. Only the first call for a try counts."""
        if self._well_since is None:
            self._well_since = now

    def fail(self, now: float) -> float:
        """Returns the seconds to pause before the next try."""
        if self._well_since is not None and now - self._well_since >= self._recovery:
            self._pause = self._first
        self._well_since = None
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        return pause


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class RunningMean:
    """Computes a mean in which each new value weighs a fifth, and the first is taken as it is."""

    __slots__ = ("value",)

    WEIGHT = 0.2

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + self.WEIGHT * (value - self.value)


class ServiceTimes:
    """Estimates how long the calls of one handler take, each or in a batch, from the last LENGTH of them.

    Where it keeps calls from being started, no news would come any more: so one may be tried after a while without, and
    what that one takes replaces all that was known. Times are in seconds; the present one is passed in.
    """

    LENGTH = 32
    LONGEST_SILENCE = 5.0  # of a handler that runs nothing

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=self.LENGTH)
        self._sorted_times: list[float] | None = []  # None: until they are asked for
        self._starts: list[float] = []  # of those that run, the oldest first
        self._news_at = -math.inf
        self._is_trying = False

    @property
    def _sorted(self) -> list[float]:
        if self._sorted_times is None:
            self._sorted_times = sorted(self._times)
        return self._sorted_times

    def start(self, now: float) -> None:
        self._starts.append(now)
        self._news_at = now

    def finish(self, started_at: float, now: float, is_measured: bool, is_cut: bool) -> None:
        """Records an end. `is_cut`: it was told to end, and so takes that long or longer."""
        self._starts.remove(started_at)
        self._news_at = now
        seconds = now - started_at
        is_trial, self._is_trying = self._is_trying, False
        if not is_measured or (is_cut and seconds <= (self.median or 0.0)):
            return
        if is_trial and not is_cut:
            self._times.clear()
        self._times.append(seconds)
        self._sorted_times = None

    def may_try(self, now: float) -> bool:
        """Returns whether no news has come for so long that a call may be started whatever is known."""
        silence = max(1.0, 2 * (self.median or 0.0))
        return now - self._news_at >= (silence if self._starts else min(silence, self.LONGEST_SILENCE))

    def begin_trial(self) -> None:
        self._is_trying = True

    @property
    def median(self) -> float | None:
        """Returns what half of the calls do not exceed; None before the first was measured."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else None

    @property
    def longest(self) -> float:
        """Returns what nineteen of twenty calls do not exceed."""
        return self._sorted[19 * (len(self._sorted) - 1) // 20] if self._sorted else 0.0

    @property
    def mean(self) -> float:
        """The mean without the longest few, which may be accidents."""
        n_left_out = math.ceil(len(self._sorted) / 16) if len(self._sorted) >= 3 else 0
        kept = self._sorted[: len(self._sorted) - n_left_out]
        return sum(kept) / len(kept) if kept else 0.0

    def wait(self, n_turns: int, n_permits: int, has_free: bool, now: float) -> float:
        """Predicts the seconds until so many calls, or batches of them, have been given a permit each."""
        running = max(self.mean - (now - self._starts[0]), 0.0) if self._starts and not has_free else 0.0
        return running + max(n_turns - 1, 0) * self.mean / max(n_permits, 1)


class RecentCount:
    """Counts the events of the last `window` seconds, by whole ones. The time is passed in and never goes backwards."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seconds: deque[list[int]] = deque()  # each with its number of events
        self._n_events = 0

    def add(self, n_events: int, now: float) -> None:
        second = int(now)
        self._n_events += n_events
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += n_events
            return
        self._seconds.append([second, n_events])
        self._forget(now)

    def total(self, now: float) -> int:
        self._forget(now)
        return self._n_events

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - self._window:
            self._n_events -= self._seconds.popleft()[1]


class EventRate:
    """Computes events per second; one of PERIOD seconds ago weighs 1/e of one of now."""

    __slots__ = ("_at", "_rate")

    PERIOD = 10.0

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = -math.inf

    def add(self, now: float) -> None:
        self._rate = self.value(now) + 1 / self.PERIOD
        self._at = now

    def value(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / self.PERIOD) if self._rate else 0.0


class Distribution:
    """Counts values by the bounds that they do not exceed."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is of what exceeds all
        self.sum = 0.0
        self.exemplars: Exemplars | None = None  # from the first traced value on

    def add(self, value: float, trace: TracePart | None = None) -> None:
        """Counts a value. `trace`: the part of a trace that it is from."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value
        if trace is not None:
            if self.exemplars is None:
                self.exemplars = Exemplars(self.bounds)
            self.exemplars.note(value, trace)

    def cumulative(self) -> list[Bucket]:
        """Returns how many values did not exceed each bound, as Prometheus counts them."""
        total = 0
        buckets: list[tuple[str, int]] = []
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else f"{bound:g}", total))
        return [*buckets] if self.exemplars is None else list(self.exemplars.among(buckets))


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

    def count_wait(self, seconds: float, trace: TracePart | None = None) -> None:
        """Counts how long a call has waited. `trace`: its own part of its request's."""
        self.wait.add(seconds)
        self.waits.add(seconds, trace)

    def count_finish(
        self,
        n_calls: int,
        started_at: float,
        now: float,
        is_measured: bool,
        is_cut: bool,
        trace: TracePart | None = None,
    ) -> None:
        """Counts the end of a hand-over. `trace`: of one of its calls.

        `is_measured`: its duration says how long its handler takes; `is_cut`: or longer, because it was told to end.
        """
        self.n_in_flight -= 1
        self.times.finish(started_at, now, is_measured, is_cut)
        seconds = now - started_at
        if is_measured:
            self.service.add(seconds / n_calls)
            self.services.add(seconds, trace)

    def count_end(self, error: CorosrvError | None) -> None:
        self.outcomes[outcome_of(error)] += 1


def outcome_of(error: CorosrvError | None) -> str:
    """Returns a word for how a call ended: `ok`, or what went wrong."""
    if error is None:
        return "ok"
    return error.code or error.kind.value.replace(" ", "_")
