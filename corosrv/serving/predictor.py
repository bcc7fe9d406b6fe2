"""The part of a server that serves a predictor: its worker, the service, and Cog's endpoints in front of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from flask import Blueprint
from gevent import monkey
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import PredictionSettings, ServerSettings, child_environment
from corosrv.dialects.predictions import routes
from corosrv.dialects.predictions.routes import PredictionCollector
from corosrv.dialects.predictions.service import PredictionService
from corosrv.web.http import metrics
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.keyed_answers import KeyedAnswers
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, RestartingWorker, WorkerConfig

log = logging.getLogger("corosrv")

_USER_AGENT = "COROSRV_USER_AGENT"  # where the worker looks for what its downloads call themselves
_STATES = {
    WorkerState.STARTING: State.STARTING,
    WorkerState.READY: State.READY,
    WorkerState.DRAINING: State.DRAINING,
    WorkerState.SETUP_FAILED: State.FAILED,
    WorkerState.DEFUNCT: State.FAILED,
    WorkerState.STOPPED: State.DRAINING,
}


class PredictorPart:
    """Serves a predictor, which is set up in a process of its own when the part is started."""

    def __init__(
        self,
        predictor: PredictionSettings,
        settings: ServerSettings,
        stats: metrics.HttpStats,
        bodies: BodyReader,
        answers: KeyedAnswers,
        *,
        stop_server: Callable[[], None],
        is_alone: bool,
    ) -> None:
        """`answers`: those that are kept under idempotency keys. `stop_server`: what POST /shutdown does.

        `is_alone`: nothing else is served, so every path is the part's.
        """
        self._settings = settings
        self._stats = stats
        self._bodies = bodies
        self._answers = answers
        self._stop_server = stop_server
        self._is_alone = is_alone
        self._ending: gevent.Greenlet | None = None
        self.on_unloadable: Callable[[str], None] = lambda reason: None  # if the predictor's code cannot be loaded
        self.worker = RestartingWorker(_maker(predictor), is_wanted=predictor.restart_worker)
        self.service = PredictionService(self.worker, predictor, logs_json=settings.log_format == "json")

    def start(self) -> None:
        if monkey.is_module_patched("socket"):
            self.service.start()
            self.worker.on_change(self._on_worker_change)
            self.worker.start()
        else:  # each request has a thread and a hub of its own, or none
            self.worker.refuse("predictions need a server that waits through gevent: gunicorn -k gevent")

    def _on_worker_change(self) -> None:
        if self.worker.state is WorkerState.SETUP_FAILED and self.worker.is_unloadable:
            self.on_unloadable(f"the predictor could not be loaded:\n{self.worker.setup.logs.rstrip()}")

    @property
    def state(self) -> State:
        return State.DRAINING if self._ending is not None else _STATES[self.worker.state]

    def check(self) -> None:
        """Raises the Unavailable that a call would meet now."""
        self.service.check()

    def stats(self) -> None:
        """Returns None: a predictor has no decode loop."""

    def stop(self) -> None:
        """Refuses new predictions, lets running ones end and their webhooks be delivered, then stops the worker.

        Returns at once. Asked a second time, it fails what still runs.
        """
        if self._ending is not None:
            self.service.hasten()
            return
        log.info("stopping: running predictions get %g s to finish", self.service.settings.drain_timeout)
        self._ending = gevent.spawn(self.service.shutdown)

    @property
    def is_ending(self) -> bool:
        """Tells whether stop() was called and something still runs."""
        return self._ending is not None and not self._ending.ready()

    def hurry(self) -> None:
        """Fails what still runs, and ends. Returns at once."""
        if self._ending is None:
            self.stop()
        self.service.hasten()

    def close(self) -> None:
        self.worker.kill()
        self.service.close()

    def collectors(self) -> tuple[Collector, ...]:
        return (PredictionCollector(self.service, lambda: self.worker.n_restarts),)

    def document(self) -> dict[str, Any]:
        """Returns the predictor's OpenAPI document. Raises Unavailable until it is known."""
        return self.service.schema.document

    def has_path(self, path: str) -> bool:
        return self._is_alone or path.split("/")[1:2] in (["predictions"], ["health-check"], ["shutdown"])

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return routes.error_body(error)

    def blueprints(self) -> tuple[Blueprint, ...]:
        """Cog's endpoints; GET /openapi.json is among them where nothing else is served."""
        return (
            routes.blueprint(
                self.service,
                self._stats,
                self._stop_server,
                self._bodies,
                has_document=self._is_alone,
                answers=self._answers,
                ping_interval=self._settings.sse_ping_interval,
                write_timeout=self._settings.write_timeout_s,
            ),
        )


def _maker(predictor: PredictionSettings) -> Callable[[], PredictorProcess]:
    environ = child_environment()
    if predictor.user_agent:
        environ[_USER_AGENT] = predictor.user_agent
    config = WorkerConfig(
        predictor=predictor.predictor,
        slots=predictor.predictor_slots,
        setup_timeout=predictor.setup_timeout or None,
        env=environ,
        cwd=str(Path.cwd()),
    )
    return lambda: PredictorProcess(config)
