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
from corosrv.dialects.kserve.grpc.server_side import GrpcConfig, GrpcLink, GrpcServices, GrpcStats
from corosrv.workers.worker.parent.asks import BeginCall, FindObject, no_object
from corosrv.workers.worker.parent.supervised import SupervisedProcess

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


class GrpcFront(SupervisedProcess[GrpcLink]):
    """Serves KServe's v2 protocol over gRPC. Belongs to the thread of one hub."""

    def __init__(
        self,
        config: GrpcConfig,
        worker: InferWorker,
        check_ready: Callable[[], None],
        find_object: FindObject = no_object,
        begin_call: BeginCall | None = None,
    ) -> None:
        """Takes what runs the calls. `check_ready` raises the Unavailable that calls would meet now.

        `find_object`: returns the content of inputs that refer to objects. `begin_call`: begins each call's trace.

        Raises SettingsError where grpcio is not installed.
        """
        check_grpcio()
        self._config = config
        self.stats = GrpcStats()
        self.has_served = False  # a process was READY once: the front as such works, and deaths are its own affair
        services = GrpcServices(worker, ServerInfo(worker, check_ready), find_object, self.stats, begin_call)
        super().__init__(lambda: GrpcLink(self._config, services))

    @property
    def port(self) -> int:
        """The port, once it was READY; the same for all processes."""
        return self.process.port

    @property
    def n_running(self) -> int:
        """The number of calls that run for its clients."""
        return self.process.n_running

    def _on_change(self) -> None:
        if self.state is WorkerState.READY:
            self.has_served = True
            self._config = replace(self._config, port=self.port)
            log.info("gRPC listens on %s, port %d", self._config.address, self.port)
        super()._on_change()

    def _is_worth_another(self) -> bool:
        return super()._is_worth_another() or not self.process.refused_to_start
