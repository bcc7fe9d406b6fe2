"""One life of the worker process that runs predictions: from its start to its end, whoever brings that about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corosrv.dispatch.permits import Permit, PermitPool
from corosrv.jobs import PredictJob
from corosrv.worker.predict_reader import PredictReader
from corosrv.worker.setup import Setup
from corosrv.worker.state import WorkerState


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What to run, and how."""

    predictor: str  # FILE.py:CLASS, FILE.py:FUNCTION, or a module in place of the file
    slots: int | None = None  # None: as many as the predictor says
    setup_timeout: float | None = None  # seconds for the whole start; None: no limit
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    cwd: str | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.worker")


class PredictorProcess:
    """Owns the process, its channels and its permits. Belongs to the thread of the hub that it was started on."""

    def __init__(self, config: WorkerConfig) -> None:
        self.state = WorkerState.STARTING
        self.reason = ""  # why it is SETUP_FAILED, DEFUNCT or STOPPED
        self.setup = Setup()
        self.schema: dict[str, Any] | None = None  # once it is READY, as are the permits
        self.permits: PermitPool | None = None

    def start(self) -> None:
        """Returns at once; a greenlet does the rest."""
        raise NotImplementedError

    def on_change(self, listener: Callable[[], None]) -> None:
        """Called after each change of state, and each poisoned slot. Must not wait."""
        raise NotImplementedError

    def submit(self, job: PredictJob, permit: Permit) -> PredictReader:
        """Takes over the permit, whatever happens; what goes wrong, the reader says with Failed.

        Waits only while a large input is written to a file.
        """
        raise NotImplementedError

    def check_health(self) -> str | None:
        """Asks the predictor's own check; None when it is well, else the reason. Waits, at most 5 s.

        Callers at the same time share one check, and as long as one hangs, no other is begun.
        """
        raise NotImplementedError

    def stop(self, timeout: float) -> None:
        """Ends the process, after what is running: it is killed after `timeout` seconds. Waits for its end.

        One that is still being set up is terminated, and killed after 5 s.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """Ends the process and all of its group now. Does not wait for it."""
        raise NotImplementedError
