"""Follows one place of a pool, which one worker process after the other takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.manager.snapshot import NEXT, PlaceState, WorkerSnapshot, check_move

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
