"""Makes a worker outlive its processes: replaces a process that died, if it should."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Setup, WorkerState
from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.dispatch.host import PermitPool
from corosrv.workers.worker.parent.predict_call import PredictReader
from corosrv.workers.worker.parent.predictor_process import PredictorProcess
from corosrv.workers.worker.parent.process import Restarts

log = logging.getLogger("corosrv.worker")

FIRST_PAUSE = 1.0  # seconds before a process follows one that died; doubled as long as none lives long
MOST_PAUSE = 60.0
LONG_LIFE = 60.0  # seconds after which a death counts as the first again


class RestartingWorker:
    """Acts as one worker over a sequence of processes. Belongs to the hub's thread.

    A first process whose set-up fails is not replaced: it would fail again. Later ones always are.
    """

    def __init__(self, make: Callable[[], PredictorProcess], is_wanted: bool, first_pause: float = FIRST_PAUSE) -> None:
        """Makes the first process; without `is_wanted` it is never replaced."""
        self._make = make
        backoff = Backoff(first_pause, MOST_PAUSE, LONG_LIFE)
        self._restarts = Restarts(self._start_next, backoff, log, "the worker", is_wanted=is_wanted)
        self._listeners: list[Callable[[], None]] = []
        self._process = self._make_process()

    def _make_process(self) -> PredictorProcess:
        process = self._make()
        process.on_change(self._on_change)
        return process

    # The process at hand.

    @property
    def state(self) -> WorkerState:
        return self._process.state

    @property
    def reason(self) -> str:
        return self._process.reason

    @property
    def setup(self) -> Setup:
        return self._process.setup

    @property
    def schema(self) -> dict[str, Any] | None:
        return self._process.schema

    @property
    def permits(self) -> PermitPool | None:
        return self._process.permits

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def submit(self, job: PredictJob) -> PredictReader:
        return self._process.submit(job)

    def check_health(self) -> str | None:
        return self._process.check_health()

    @property
    def is_unloadable(self) -> bool:
        """True when the first process has found that the predictor's code cannot be loaded."""
        return self.n_restarts == 0 and self._process.is_unloadable

    # Its life, and the next one's.

    @property
    def n_restarts(self) -> int:
        return self._restarts.count

    def start(self) -> None:
        self._process.start()

    def refuse(self, reason: str) -> None:
        """Fails the set-up with this reason, in place of start()."""
        self._process.refuse(reason)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state, also to that of a new process; it must not wait."""
        self._listeners.append(listener)

    def stop(self, timeout: float) -> None:
        """Ends the process for good. Waits."""
        self._restarts.give_up()
        self._process.stop(timeout)

    def kill(self) -> None:
        self._restarts.give_up()
        self._process.kill()

    def _on_change(self) -> None:
        state = self._process.state
        if state is WorkerState.READY:
            self._restarts.note_ready()
        self._notify()
        if state is WorkerState.DEFUNCT or (state is WorkerState.SETUP_FAILED and self.n_restarts > 0):
            self._restarts.note_death()

    def _start_next(self) -> None:
        self._process.stop(0.0)  # nothing of it is left, then
        self._process = self._make_process()
        self._notify()
        self._process.start()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
