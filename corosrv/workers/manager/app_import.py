"""Starts the first process of an application, which imports it and says which pools it has."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from corosrv.contracts.jobs.setup import NEXT, WorkerState
from corosrv.workers.manager.pool_memory import CrashRecord
from corosrv.workers.manager.worker_pool import MakeWorker
from corosrv.workers.worker.parent.app_worker import AppWorker

log = logging.getLogger("corosrv.manager")


class AppImport:
    """Starts processes until one has imported the application. Belongs to the hub's thread; nothing waits."""

    def __init__(
        self, make: MakeWorker, clock: Callable[[], float], on_import: Callable[[AppWorker], None],
        on_failure: Callable[[], None],
    ) -> None:  # fmt: skip
        """`on_import` is handed the process, once; `on_failure` is called after each that failed."""
        self._make = make
        self._clock = clock
        self._on_import = on_import
        self._on_failure = on_failure
        self._crashes = CrashRecord()
        self._n_started = 0
        self.worker: AppWorker | None = None
        self.is_over = False

    @property
    def reason(self) -> str:
        """Says why the last try failed."""
        return self._crashes.last_reason

    @property
    def retry_at(self) -> float | None:
        """The time of the next try; None while one goes on."""
        return self._crashes.retry_at if self.worker is None else None

    def look(self, now: float) -> None:
        """Starts a process if it is time to."""
        if self.is_over or self.worker is not None or now < self._crashes.retry_at:
            return
        self._n_started += 1
        self.worker = worker = self._make(None, "0", self._n_started)
        worker.on_change(functools.partial(self._follow, worker))
        worker.start()

    def _follow(self, worker: AppWorker) -> None:
        if worker is not self.worker or self.is_over:
            return
        if worker.pools:
            self.is_over = True
            self._on_import(worker)
        elif worker.state is WorkerState.STOPPED:  # as somebody wanted
            self.worker = None
        elif not NEXT[worker.state]:
            self.worker = None
            pause = self._crashes.add(self._clock(), reason=worker.reason)
            self._on_failure()  # which may end this process, and says why then
            log.error("the application could not be imported: %s; the next try is in %.1f s", worker.reason, pause)
