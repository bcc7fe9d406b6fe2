"""States of a worker process, and the moves between them."""

from __future__ import annotations

from enum import Enum

from corosrv.base.errors import IllegalTransition


class WorkerState(str, Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # it takes nothing new, and ends when nothing runs
    SETUP_FAILED = "setup_failed"
    DEFUNCT = "defunct"  # it died, or none of its slots can be used
    STOPPED = "stopped"  # as somebody wanted


NEXT: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.STARTING: frozenset({WorkerState.READY, WorkerState.SETUP_FAILED, WorkerState.STOPPED}),
    WorkerState.READY: frozenset({WorkerState.DRAINING, WorkerState.DEFUNCT, WorkerState.STOPPED}),
    WorkerState.DRAINING: frozenset({WorkerState.DEFUNCT, WorkerState.STOPPED}),
    WorkerState.SETUP_FAILED: frozenset(),
    WorkerState.DEFUNCT: frozenset(),
    WorkerState.STOPPED: frozenset(),
}


def check_move(state: WorkerState, next_state: WorkerState) -> None:
    """Raises IllegalTransition unless the table has it."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a worker", state, next_state)
