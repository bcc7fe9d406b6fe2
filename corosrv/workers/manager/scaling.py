"""Decides how many workers a pool should have, from its queues and the slots in use. The time is passed in.

A size that was too small is remembered with its load, so that it is not tried over and over.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.workers.manager.plan import GroupSnapshot, PoolSnapshot

STEPS = 400  # of a window: how exactly its averages begin when they should


class LoadWindow:
    """Remembers how many slots were in use, for averages over the last so many seconds.

    Calls that are longer than the time between two looks are seen running; shorter ones are known by what has ended
    since. Each way misses some of the other's, so the larger average counts.
    """

    def __init__(self, length: float) -> None:
        """`length`: seconds of the longest average."""
        self._length = length
        self._times: list[float] = []
        self._sums: list[tuple[float, float]] = []  # slot seconds until then: seen in use, and of ended calls
        self._looked_at = 0.0
        self._in_use = 0
        self._seen = 0.0
        self._done = 0.0

    def look(self, in_use: int, work_done: float, now: float) -> None:
        """Records the slots in use now, and the slot seconds of all calls that have ended."""
        if self._times:
            self._seen += self._in_use * (now - self._looked_at)
        self._done = work_done
        if not self._times or now - self._times[-1] >= self._length / STEPS:
            self._times.append(now)
            self._sums.append((self._seen, work_done))
        if len(self._times) > 2 * STEPS:
            del self._times[:STEPS], self._sums[:STEPS]
        self._looked_at, self._in_use = now, in_use

    def mean(self, seconds: float) -> float | None:
        """Returns the average over the last so many seconds before the last look; None if the window is younger."""
        position = bisect_right(self._times, self._looked_at - seconds) - 1
        if position < 0:
            return None
        seen, done = self._sums[position]
        return max(self._seen - seen, self._done - done) / (self._looked_at - self._times[position])


SPARSE = 0.1  # of the slots of a size that was too small: with so few in use it is tried again
LONGEST_HOLD = 3600.0  # seconds


class SizeHistory:
    """Remembers the largest size that was too small although all of its slots were ready.

    It may be tried again when the load has halved, and each time that it proves too small again, after twice as long.
    Loads are slots in use on average, by group.
    """

    def __init__(self) -> None:
        self._size = 0
        self._limits: tuple[float, ...] = ()  # loads at most for which it is tried again
        self._n_proofs = 0
        self._is_tried = False

    def add_proof(self, size: int, loads: Sequence[float], slots: Sequence[int]) -> None:
        """Records that a size is too small. `slots`: those of one worker, by group. Repeating it changes nothing."""
        if size == self._size and not self._is_tried:
            return
        self._n_proofs = self._n_proofs + 1 if self._is_tried and size <= self._size else 1
        self._size, self._is_tried = size, False
        self._limits = tuple(max(load / 2, SPARSE * size * n) for load, n in zip(loads, slots, strict=True))

    def hold(self, size: int, seconds: float) -> float:
        """Returns for how long the load has to be low before the pool may go down to this size."""
        if size > self._size:
            return seconds
        return max(seconds, min(seconds * 2.0 ** (self._n_proofs - 1), LONGEST_HOLD))

    def allows(self, size: int, loads: Sequence[float]) -> bool:
        """Tells whether a size may be tried with these loads."""
        if size > self._size or len(loads) != len(self._limits):
            return True
        return all(load <= limit for load, limit in zip(loads, self._limits, strict=True))

    def note_try(self, size: int) -> None:
        """Records that the pool goes down to this size."""
        self._is_tried = self._is_tried or size <= self._size


PRESSED_TICKS = 2  # in a row, before a forecast counts
# Of a pool's slots in use, on average: fewer would do. From two workers on, one fewer has less than 70 % in use then.
LOW = 0.3
START_PAUSE = 5.0  # seconds after a stop without a start
MOST_SLOTS = 10_000  # that a backlog asks for; keeps the numbers finite, whatever a handler's times are


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """Says how many workers a pool should have, and why; `reason` is for the operator."""

    target: int
    reason: str


class Scaler:
    """Decides the size of one pool at each tick. Keeps what it saw before; the caller passes the current time in.

    A pool under constant load comes to rest: a size that proved too small is tried again only for a smaller load.
    """

    def __init__(self, target: int) -> None:
        self.decided = SizeDecision(target, "as many as it begins with")
        self._loads: list[LoadWindow] = []
        self._history = SizeHistory()
        self._n_pressed = 0
        self._started_at = -math.inf
        self._stopped_at = -math.inf
        self._n_ready = 0
        self._ready_at = -math.inf  # when the last worker became ready

    def note_start(self, now: float) -> None:
        """Records that a worker was started."""
        self._started_at = now

    def note_eviction(self, pool: str) -> None:
        """Records that a worker makes room for another pool, and is not to come back before it is needed."""
        self.decided = SizeDecision(max(self.decided.target - 1, 0), f"a worker made room for the pool {pool}")

    def decide(self, pool: PoolSnapshot, now: float) -> SizeDecision:
        """Returns how many workers the pool should have. Call it once a second."""
        self._look(pool, now)
        target = self.decided.target
        if (bounded := min(max(target, pool.least), pool.most)) != target:
            self.decided = SizeDecision(bounded, f"it may have from {pool.least} to {pool.most}")
        elif wanted := self._larger_size(pool, now):
            self._grow(pool, wanted)
        elif reason := self._can_shrink(pool, now):
            self._history.note_try(target - 1)
            self._stopped_at = now
            self.decided = SizeDecision(target - 1, reason)
        return self.decided

    def _look(self, pool: PoolSnapshot, now: float) -> None:
        if len(self._loads) != len(pool.groups):
            self._loads = [LoadWindow(LONGEST_HOLD) for _ in pool.groups]
        for load, group in zip(self._loads, pool.groups, strict=True):
            load.look(group.in_use, group.work_done, now)
        if pool.ready > self._n_ready:
            self._ready_at = now
        self._n_ready = pool.ready
        is_pressed = any(_forecast(group, pool.live) > group.patience for group in pool.groups)
        self._n_pressed = self._n_pressed + 1 if is_pressed else 0

    # Up.

    def _larger_size(self, pool: PoolSnapshot, now: float) -> SizeDecision | None:
        if pool.live == 0:
            return SizeDecision(1, "calls wait, and no worker is there") if pool.depth else None
        is_urgent = any(group.oldest > group.patience for group in pool.groups)
        if not is_urgent and (self._n_pressed < PRESSED_TICKS or now - self._stopped_at < START_PAUSE):
            return None
        wanted = [self._needed(group, pool, now) for group in pool.groups]
        largest = max(wanted, key=lambda decision: decision.target)
        return largest if largest.target > pool.live else None

    def _needed(self, group: GroupSnapshot, pool: PoolSnapshot, now: float) -> SizeDecision:
        """Returns how many workers the group needs for its waiting calls, 0 for no more than there are."""
        forecast = _forecast(group, pool.live)
        waited = min(group.oldest, now - self._ready_at)  # with the workers that there are
        if max(forecast, group.oldest) <= group.patience or _clears(group, pool, waited):
            return SizeDecision(0, "")
        if forecast > group.patience:
            slots = min(math.ceil(group.work / group.patience), MOST_SLOTS)
            words = f"calls of {group.name} would wait {forecast:.1f} s, and should wait {group.patience:.1f} s at most"
            return SizeDecision(math.ceil(slots / group.slots), words)
        if pool.starting or waited <= group.patience:
            return SizeDecision(0, "")
        # The forecast is wrong: one more worker, and then time to see what it does.
        return SizeDecision(pool.live + 1, f"a call of {group.name} has waited {group.oldest:.1f} s")

    def _grow(self, pool: PoolSnapshot, larger: SizeDecision) -> None:
        if pool.ready == pool.live > 0:  # all its workers are there: it is too small, and not just slow to start
            self._history.add_proof(
                pool.live, self._means(pool, pool.hold), [group.slots for group in pool.groups]
            )  # fmt: skip
        target = min(max(self.decided.target, larger.target), pool.most)
        limit = f"; it may have {pool.most}" if larger.target > pool.most else ""
        self.decided = SizeDecision(target, larger.reason + limit)

    # Down.

    def _can_shrink(self, pool: PoolSnapshot, now: float) -> str:
        """Returns why one worker fewer would do, or nothing."""
        target = self.decided.target
        is_settled = target > pool.least and len(pool.workers) == pool.ready == target
        hold = self._history.hold(target - 1, pool.hold)
        if not is_settled or pool.depth or now - self._started_at < hold:
            return ""
        if not self._history.allows(target - 1, self._means(pool, hold)):
            return ""
        if not all(self._is_low(load, group, hold) for load, group in zip(self._loads, pool.groups, strict=True)):
            return ""
        return f"{target - 1} would have been enough for {hold:.0f} s"

    def _is_low(self, load: LoadWindow, group: GroupSnapshot, seconds: float) -> bool:
        """Tells whether one worker fewer would have carried the group's load with ease."""
        mean, target = load.mean(seconds), self.decided.target
        if mean is None:
            return False
        if target == 1:  # the last one goes when nothing was asked of it
            return mean == 0 and group.in_use == 0
        return mean < LOW * target * group.slots

    def _means(self, pool: PoolSnapshot, seconds: float) -> list[float]:
        """Returns the average number of slots in use of each group; that of now where there is no average yet."""
        means = (load.mean(seconds) for load in self._loads)
        return [group.in_use if mean is None else mean for mean, group in zip(means, pool.groups, strict=True)]


def _forecast(group: GroupSnapshot, n_workers: int) -> float:
    """Returns the seconds that a call would wait which came now."""
    return group.work / max(n_workers * group.slots, 1)


def _clears(group: GroupSnapshot, pool: PoolSnapshot, waited: float) -> bool:
    """Tells whether the present slots finish the waiting calls before another worker could help.

    `waited`: how long a call has waited for these slots, which speaks against a shorter forecast.
    """
    if pool.ready == 0:
        return False
    seconds = group.work / (pool.ready * group.slots)
    if waited > group.patience:
        seconds = max(seconds, waited)
    return seconds < pool.cold_start
