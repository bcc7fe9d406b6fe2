"""Remembers a pool between two looks of the planning: its limits, size, crashes and start times, and its places.

`CrashRecord` says when the next worker may start after a crash, and when the pool is said to loop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.manager.plan import (
    NEXT,
    Claim,
    GroupSnapshot,
    PlaceState,
    PoolSnapshot,
    WorkerSnapshot,
    check_move,
)
from corosrv.workers.manager.scaling import Scaler

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess


_LIFE = (PlaceState.STARTING, PlaceState.READY, PlaceState.DRAINING, PlaceState.STOPPING, PlaceState.GONE)
_STATES = {
    WorkerState.STARTING: PlaceState.STARTING,
    WorkerState.READY: PlaceState.READY,
    WorkerState.DRAINING: PlaceState.DRAINING,
    WorkerState.SETUP_FAILED: PlaceState.FAILED,
    WorkerState.DEFUNCT: PlaceState.FAILED,
    WorkerState.STOPPED: PlaceState.GONE,
}


class Place:
    """Follows the state of its process. Belongs to the hub's thread; nothing waits, and the time is passed in."""

    def __init__(self, pool: str, number: int) -> None:
        self.pool = pool
        self.number = number
        self.id = f"{pool}/{number}"
        self.state = PlaceState.GONE
        self.worker: AppProcess | None = None  # the last one, also when it is over
        self.incarnation = 0
        self.started_at = 0.0
        self.ready_at: float | None = None
        self.is_outgoing = False  # the operator wants its process replaced
        self._idle_since: float | None = None
        self._n_ended = 0

    def take(self, worker: AppProcess, now: float) -> None:
        """Begins with a new process, which is starting."""
        self._enter(PlaceState.STARTING)
        self.worker = worker
        self.incarnation = worker.incarnation
        self.started_at, self.ready_at = now, None
        self.is_outgoing = False
        self._idle_since, self._n_ended = None, 0

    def words(self, now: float) -> str:
        """Names the process in the log, with the seconds since its start."""
        assert self.worker is not None
        return f"pool {self.pool}: worker {self.id} (pid {self.worker.pid}), {now - self.started_at:.1f} s old,"

    def follow(self, now: float) -> bool:
        """Moves as the process has moved; returns whether it has."""
        before, target = self.state, self._state_of_worker()
        while self.state is not target:
            is_direct = target in NEXT[self.state]
            self._enter(target if is_direct else _LIFE[_LIFE.index(self.state) + 1])
            if self.state is PlaceState.READY:
                self.ready_at = now
        return self.state is not before

    def _state_of_worker(self) -> PlaceState:
        assert self.worker is not None
        state = _STATES[self.worker.state]
        is_told_to_stop = self.state is PlaceState.STOPPING
        if state is PlaceState.STARTING and is_told_to_stop:
            return PlaceState.STOPPING
        if state is PlaceState.FAILED and is_told_to_stop:
            return PlaceState.GONE  # what was asked of it was its end
        if state is PlaceState.DRAINING and self.worker.in_flight == 0:
            return PlaceState.STOPPING  # its on_stop runs
        return state

    def drain(self, reason: str) -> None:
        """Ends the process when nothing runs on it. Does nothing to one that is ending."""
        assert self.worker is not None
        if self.state is PlaceState.STARTING:
            self._enter(PlaceState.STOPPING)
        self.worker.drain(reason)

    def _enter(self, state: PlaceState) -> None:
        check_move(self.state, state)
        self.state = state

    def snapshot(self, now: float) -> WorkerSnapshot:
        """Returns where the process stands."""
        assert self.worker is not None
        n_ended = self.worker.served + self.worker.failed
        if self.state is not PlaceState.READY or self.worker.in_flight:
            self._idle_since = None
        elif self._idle_since is None or n_ended != self._n_ended:
            self._idle_since = now
        self._n_ended = n_ended
        return WorkerSnapshot(
            self.id, self.state, self.started_at, self.worker.in_flight, self._idle_since, self.is_outgoing
        )  # fmt: skip


FIRST_PAUSE = 0.5  # seconds
LONGEST_PAUSE = 30.0
RECOVERY = 60.0  # seconds that a worker is well before the next crash is the first again
LOOP_CRASHES = 5
LOOP_TIME = 60.0  # seconds


class CrashRecord:
    """Records the crashes of one pool. The caller passes the current time in; nothing waits.

    A worker that could not start has crashed as well; one that died while a handler ran has not: that is the handler's
    crash (see corosrv.workers.dispatch.entries). One pool's record knows nothing of another's.
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
        self.is_looping = self.is_looping or (len(self._times) == LOOP_CRASHES and now - self._times[0] <= LOOP_TIME)
        pause = LONGEST_PAUSE if self.is_looping else min(FIRST_PAUSE * 2**self._n_in_a_row, LONGEST_PAUSE)
        self._n_in_a_row += 1
        pause *= self._jitter()
        self.retry_at = max(self.retry_at, now + pause)
        return pause

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


COLD_START = 5.0  # seconds, as long as nothing is declared and nothing was measured
_NEW_SHARE = 0.3  # of the last start in the average of all


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Holds what the author and the operator say about a pool. `cold_start`: seconds; None: it is measured."""

    name: str
    least: int
    most: int
    claim: Claim = field(default_factory=Claim)
    priority: int = 5
    cold_start: float | None = None


class PoolMemory:
    """Remembers one pool, and says where it stands. The caller passes the current time in; nothing waits."""

    def __init__(self, terms: PoolTerms, crashes: CrashRecord | None = None) -> None:
        self.name = terms.name
        self.claim = terms.claim
        self.priority = terms.priority
        self.least, self.most = terms.least, terms.most
        self.crashes = crashes or CrashRecord()
        self._declared = terms.cold_start
        self._measured: float | None = None
        self._scaler = Scaler(terms.least)

    @property
    def cold_start(self) -> float:
        """Seconds from a start until the worker is ready: measured, else declared."""
        if self._measured is not None:
            return self._measured
        return COLD_START if self._declared is None else self._declared

    @property
    def patience(self) -> float:
        """Seconds that a call may wait for the first worker of an empty pool."""
        return 3 * self.cold_start + 10

    @property
    def target(self) -> int:
        return self._scaler.decided.target

    def set_limits(self, least: int, most: int) -> None:
        """Sets how many workers there may be; the next look brings the pool there."""
        self.least, self.most = least, most

    def note_start(self, now: float) -> None:
        """Records that a worker was started."""
        self._scaler.note_start(now)

    def note_ready(self, seconds: float) -> None:
        """Records how long a worker took to start."""
        last = self._measured
        self._measured = seconds if last is None else last + _NEW_SHARE * (seconds - last)

    def note_eviction(self, pool: str) -> None:
        """Records that a worker ends to make room for another pool."""
        self._scaler.note_eviction(pool)

    def stand(
        self, workers: tuple[WorkerSnapshot, ...], groups: tuple[GroupSnapshot, ...], now: float
    ) -> PoolSnapshot:  # fmt: skip
        """Decides the pool's target, and returns where it stands. Call it once a second."""
        standing = self._standing(workers, groups)
        self._scaler.decide(standing, now)
        return self._standing(workers, groups)

    def _standing(self, workers: tuple[WorkerSnapshot, ...], groups: tuple[GroupSnapshot, ...]) -> PoolSnapshot:
        decided = self._scaler.decided
        return PoolSnapshot(
            self.name,
            self.least,
            self.most,
            decided.target,
            workers,
            groups,
            self.claim,
            self.priority,
            self.cold_start,
            self.crashes.retry_at,
            self.crashes.has_crashed,
            self.crashes.is_looping,
            decided.reason,
        )
