"""Keeps a gRPC process running for the server: replaces it when it dies.

What it asks without running anything, such as metadata, is answered by `ServerInfo` with the bodies of REST.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError, NotFound, SettingsError, Unavailable
from corosrv.contracts.jobs.infer import InferWorker, ModelTarget
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.kserve import metadata
from corosrv.dialects.kserve.grpc.messages import AskInfo
from corosrv.dialects.kserve.grpc.server_side import GrpcConfig, GrpcProcessLink, GrpcServices, GrpcStats
from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.worker.parent.asks import FindObject, no_object
from corosrv.workers.worker.parent.process import Restarts

log = logging.getLogger("corosrv.grpc")

_NOT_HERE = ("binary_tensor_data", "generate")  # extensions of REST alone


class ServerInfo:
    """Tells about the server and the models of a worker. Nothing here waits."""

    def __init__(self, worker: InferWorker, check_ready: Callable[[], None]) -> None:
        """`check_ready` raises the Unavailable that calls would meet now."""
        self._worker = worker
        self._check_ready = check_ready

    def __call__(self, ask: AskInfo) -> dict[str, Any]:
        """Returns the body of the answer. Raises NotFound for an unknown model."""
        match ask.subject:
            case "live":
                return {}
            case "ready":
                return {"ready": self._is_ready()}
            case "server":
                server = metadata.server_metadata()
                server.extensions = [name for name in server.extensions if name not in _NOT_HERE]
                return msgspec.structs.asdict(server)
            case "model":
                card = self._worker.find(ModelTarget(ask.model, ask.version))
                body: dict[str, Any] = msgspec.to_builtins(metadata.model_metadata(card, self._worker.standings()))
                return body
            case "model_ready":
                return {"ready": self._is_model_ready(ModelTarget(ask.model, ask.version))}
            case _:
                return {"models": msgspec.to_builtins(metadata.index(self._worker.standings()))}

    def _is_ready(self) -> bool:
        try:
            self._check_ready()
        except CorosrvError:
            return False
        return True

    def _is_model_ready(self, target: ModelTarget) -> bool:
        try:
            card = self._worker.find(target)
        except (NotFound, Unavailable):
            return False
        standing = metadata.standing_of(card, self._worker.standings())
        return standing is not None and standing.state == metadata.READY


FIRST_PAUSE = 0.5  # seconds before a process follows one that died; doubled as long as none lives long
LONGEST_PAUSE = 30.0
LONG_LIFE = 60.0  # seconds after which a death counts as the first again


def check_grpcio() -> None:
    """Raises SettingsError where grpcio is not installed."""
    for package in ("grpc", "google.protobuf"):
        try:
            is_there = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise SettingsError(
                "gRPC needs the extra `grpc`: pip install 'corosrv[grpc]', or serve without --grpc-port"
            )


class GrpcFront:
    """Serves KServe's v2 protocol over gRPC. Belongs to the thread of one hub.

    A first process that cannot listen is not replaced: it would fail again. All others are.
    """

    def __init__(
        self,
        config: GrpcConfig,
        worker: InferWorker,
        check_ready: Callable[[], None],
        find_object: FindObject = no_object,
    ) -> None:
        """Takes what runs the calls. `check_ready` raises the Unavailable that calls would meet now.

        `find_object`: returns the content of inputs that refer to objects.

        Raises SettingsError where grpcio is not installed.
        """
        check_grpcio()
        self._config = config
        self.stats = GrpcStats()
        self._services = GrpcServices(worker, ServerInfo(worker, check_ready), find_object, self.stats)
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, LONG_LIFE)
        self._restarts = Restarts(self._start_next, backoff, log, "the gRPC process")
        self._listeners: list[Callable[[], None]] = []
        self.has_served = False  # a process was READY once: the front as such works, and deaths are its own affair
        self._process = self._make()

    def _make(self) -> GrpcProcessLink:
        return GrpcProcessLink(self._config, self._services, self._on_change)

    @property
    def state(self) -> WorkerState:
        """The state of the running process; STARTING while one is being started."""
        return self._process.state

    @property
    def reason(self) -> str:
        return self._process.reason

    @property
    def port(self) -> int:
        """The port, once it was READY; the same for all processes."""
        return self._process.port

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def n_restarts(self) -> int:
        return self._restarts.count

    @property
    def n_running(self) -> int:
        """The number of calls that run for its clients."""
        return self._process.n_running

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state; it must not wait."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Starts the process. Never waits for it."""
        self._process.start()

    def stop(self, grace: float) -> None:
        """Refuses new calls, lets running ones end within `grace` seconds, and ends the process for good. Waits."""
        self._restarts.give_up()
        self._process.stop(grace)

    def kill(self) -> None:
        """Ends the process now, for good. Does not wait for it."""
        self._restarts.give_up()
        self._process.kill()

    def _on_change(self, process: GrpcProcessLink) -> None:
        log.info("the gRPC process is %s%s", process.state.value, process.reason and f": {process.reason}")
        if process.state is WorkerState.READY:
            self.has_served = True
            log.info("gRPC listens on %s, port %d", self._config.address, process.port)
            self._restarts.note_ready()
            self._config = replace(self._config, port=process.port)
        self._notify()
        is_dead = process.state in (WorkerState.SETUP_FAILED, WorkerState.DEFUNCT)
        if is_dead and (self.n_restarts or not process.refused_to_start):
            self._restarts.note_death()

    def _start_next(self) -> None:
        self._process.kill()  # nothing of it is left, then
        self._process = self._make()
        self._notify()
        self._process.start()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
