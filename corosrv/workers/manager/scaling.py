"""Decides how many workers a pool should have, from its queues and the slots in use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corosrv.workers.manager.load import LoadWindow
from corosrv.workers.manager.size_history import LONGEST_HOLD, SizeHistory
from corosrv.workers.manager.snapshot import GroupSnapshot, PoolSnapshot

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
        self._decided = SizeDecision(target, "as many as it begins with")
        self._loads: list[LoadWindow] = []
        self._history = SizeHistory()
        self._n_pressed = 0
        self._started_at = -math.inf
        self._stopped_at = -math.inf
        self._n_ready = 0
        self._ready_at = -math.inf  # when the last worker became ready

    @property
    def decided(self) -> SizeDecision:
        """The last decision."""
        return self._decided

    def note_start(self, now: float) -> None:
        """Records that a worker was started."""
        self._started_at = now

    def note_eviction(self, pool: str) -> None:
        """Records that a worker makes room for another pool, and is not to come back before it is needed."""
        self._decided = SizeDecision(max(self._decided.target - 1, 0), f"a worker made room for the pool {pool}")

    def decide(self, pool: PoolSnapshot, now: float) -> SizeDecision:
        """Returns how many workers the pool should have. Call it once a second."""
        self._look(pool, now)
        target = self._decided.target
        if (bounded := min(max(target, pool.least), pool.most)) != target:
            self._decided = SizeDecision(bounded, f"it may have from {pool.least} to {pool.most}")
        elif wanted := self._larger_size(pool, now):
            self._grow(pool, wanted)
        elif reason := self._can_shrink(pool, now):
            self._history.note_try(target - 1)
            self._stopped_at = now
            self._decided = SizeDecision(target - 1, reason)
        return self._decided

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
        """Returns a larger size than the pool has, or None."""
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
        target = min(max(self._decided.target, larger.target), pool.most)
        limit = f"; it may have {pool.most}" if larger.target > pool.most else ""
        self._decided = SizeDecision(target, larger.reason + limit)

    # Down.

    def _can_shrink(self, pool: PoolSnapshot, now: float) -> str:
        """Returns why one worker fewer would do, or nothing."""
        target = self._decided.target
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
        mean, target = load.mean(seconds), self._decided.target
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
