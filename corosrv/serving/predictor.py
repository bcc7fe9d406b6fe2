"""The part of a server that serves a predictor: its worker, the service, and Cog's endpoints in front of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from flask import Blueprint
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError
from corosrv.base.outgoing import WebhookSigner
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import PredictionSettings, child_environment
from corosrv.dialects.predictions import routes
from corosrv.dialects.predictions.routes import PredictionCollector
from corosrv.dialects.predictions.service import PredictionService
from corosrv.serving.part import Part, ServerContext, why_not_served
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, PredictorWorker, WorkerConfig

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


class PredictorPart(Part):
    """Serves a predictor, which is set up in a process of its own when the part is started."""

    formats = ("predictions",)

    def __init__(self, context: ServerContext, predictor: PredictionSettings) -> None:
        self._context = context
        self.on_unloadable: Callable[[str], None] = lambda reason: None  # if the predictor's code cannot be loaded
        self.worker = PredictorWorker(_maker(predictor), is_wanted=predictor.restart_worker)
        server = context.settings.server
        self.service = PredictionService(
            self.worker,
            predictor,
            logs_json=server.log_format == "json",
            resume_s=server.resume_s,
            signer=WebhookSigner(server.webhook_secrets),
        )

    @property
    def is_alone(self) -> bool:
        """True where nothing else is served, and every path is the part's."""
        return self._context.parts == [self]

    def start(self) -> None:
        if reason := why_not_served("predictions"):
            self.worker.refuse(reason)
            return
        self.service.start()
        self.worker.on_change(self._on_worker_change)
        self.worker.start()

    def _on_worker_change(self) -> None:
        if self.worker.state is WorkerState.SETUP_FAILED and self.worker.is_unloadable:
            self.on_unloadable(f"the predictor could not be loaded:\n{self.worker.setup.logs.rstrip()}")

    @property
    def state(self) -> State:
        return State.DRAINING if self._ending is not None else _STATES[self.worker.state]

    def check(self) -> None:
        """Raises the Unavailable that a call would meet now."""
        self.service.check()

    def stop(self) -> None:
        """Refuses new predictions, lets running ones end and their webhooks be delivered, then stops the worker.

        Returns at once. Asked a second time, it fails what still runs.
        """
        if self._ending is not None:
            self.service.hasten()
            return
        log.info("stopping: running predictions get %g s to finish", self.service.settings.drain_timeout)
        self._ending = gevent.spawn(self.service.shutdown)

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
        return self.is_alone or path.split("/")[1:2] in (["predictions"], ["health-check"], ["shutdown"])

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return routes.error_body(error)

    def blueprints(self) -> tuple[Blueprint, ...]:
        """Cog's endpoints; GET /openapi.json is among them where nothing else is served."""
        context = self._context
        return (
            routes.blueprint(
                self.service,
                lambda: context.on_shutdown(),
                context.bodies,
                context.streams,
                has_document=self.is_alone,
                answers=context.answers,
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
