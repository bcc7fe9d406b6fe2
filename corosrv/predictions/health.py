"""Where the service stands: a state table, and how the worker's state and its slots are read as one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from corosrv.errors import IllegalTransition
from corosrv.jobs.worker_state import WorkerState


class Health(str, Enum):
    """As GET /health-check says it."""

    UNKNOWN = "UNKNOWN"  # no predictor is configured
    STARTING = "STARTING"
    READY = "READY"
    BUSY = "BUSY"
    UNHEALTHY = "UNHEALTHY"  # the user's own check failed just now: told, never kept
    SETUP_FAILED = "SETUP_FAILED"
    DEFUNCT = "DEFUNCT"


NEXT: dict[Health, frozenset[Health]] = {
    Health.UNKNOWN: frozenset(),
    Health.STARTING: frozenset({Health.READY, Health.SETUP_FAILED}),
    Health.READY: frozenset({Health.BUSY, Health.DEFUNCT}),
    Health.BUSY: frozenset({Health.READY, Health.DEFUNCT}),
    Health.UNHEALTHY: frozenset(),
    Health.SETUP_FAILED: frozenset(),
    Health.DEFUNCT: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Slots:
    """How many there are, run a prediction, and can run nothing any more."""

    total: int = 0
    busy: int = 0
    poisoned: int = 0

    @property
    def free(self) -> int:
        return self.total - self.busy - self.poisoned


class HealthState:
    """The state of one worker's life; moves along the table and refuses the rest."""

    def __init__(self, state: Health = Health.STARTING) -> None:
        self.state = state

    def move(self, state: Health) -> None:
        """Raises IllegalTransition. To stay is no move."""
        if state is self.state:
            return
        if state not in NEXT[self.state]:
            raise IllegalTransition("the service", self.state, state)
        self.state = state


_OF_WORKER: dict[WorkerState, Health] = {
    WorkerState.STARTING: Health.STARTING,
    WorkerState.SETUP_FAILED: Health.SETUP_FAILED,
    WorkerState.DEFUNCT: Health.DEFUNCT,
}
# A worker that was stopped is as good as dead, or was never set up.
_STOPPED: dict[Health, Health] = {
    Health.STARTING: Health.SETUP_FAILED,
    Health.READY: Health.DEFUNCT,
    Health.BUSY: Health.DEFUNCT,
    Health.SETUP_FAILED: Health.SETUP_FAILED,
    Health.DEFUNCT: Health.DEFUNCT,
}


def of_worker(before: Health, worker: WorkerState, slots: Slots) -> Health:
    """Where the service stands, given where it stood."""
    if worker is WorkerState.READY:
        return _of_slots(slots)
    return _STOPPED[before] if worker is WorkerState.STOPPED else _OF_WORKER[worker]


def _of_slots(slots: Slots) -> Health:
    if slots.poisoned == slots.total:
        return Health.DEFUNCT
    return Health.READY if slots.free else Health.BUSY
