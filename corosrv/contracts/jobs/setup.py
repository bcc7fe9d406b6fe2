"""A worker's set-up: when it began and ended, how, and what it printed.

States of a worker process, and the moves between them.
"""

from __future__ import annotations

import io
from datetime import datetime, timezone
from enum import Enum

from corosrv.base.errors import IllegalTransition

MAX_LOGS = 4 << 20  # characters

_CUT = "\n[TRUNCATED: the set-up printed more than is kept]\n"


class Setup:
    """`status`: starting, succeeded or failed. Once it has ended, nothing changes any more."""

    def __init__(self) -> None:
        self.status = "starting"
        self.started_at: datetime | None = None
        self.completed_at: datetime | None = None
        self._logs = io.StringIO()
        self._is_cut = False

    @property
    def logs(self) -> str:
        return self._logs.getvalue()

    def start(self) -> None:
        self.started_at = datetime.now(timezone.utc)

    def add_logs(self, text: str) -> None:
        """Keeps what there is room for, and says where it was cut."""
        if self._is_cut:
            return
        room = MAX_LOGS - self._logs.tell()
        self._logs.write(text[:room])
        if len(text) > room:
            self._logs.write(_CUT)
            self._is_cut = True

    def succeed(self) -> None:
        self._end("succeeded")

    def fail(self, error: str) -> None:
        """Ends the logs with the error, unless the worker has printed it by itself."""
        logs = self.logs
        if error not in logs:
            line_end = "" if logs.endswith("\n") or not logs else "\n"
            self._logs.write(f"{line_end}{error}\n")
        self._end("failed")

    def _end(self, status: str) -> None:
        self.status = status
        self.completed_at = datetime.now(timezone.utc)


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
