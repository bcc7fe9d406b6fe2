"""Keeps a gRPC process running for the server: replaces it when it dies.

What it asks without running anything, such as metadata, is answered by `ServerInfo` with the bodies of REST.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError, NotFound, SettingsError, Unavailable
from corosrv.contracts.jobs.infer import AnswerBody, ForwardRequest, InferEnd, InferJob, InferWorker, ModelTarget
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.jobs.terms import Terms
from corosrv.dialects.kserve import metadata
from corosrv.dialects.kserve.grpc.messages import AskInfo
from corosrv.dialects.kserve.grpc.server_side import GrpcConfig, GrpcLink, GrpcStats
from corosrv.workers.worker.parent.call_services import CallAccount, CallServices
from corosrv.workers.worker.parent.supervised import SupervisedProcess

log = logging.getLogger("corosrv.grpc")

_NOT_HERE = ("binary_tensor_data", "generate")  # extensions of REST alone
_PATIENCE = 10.0  # seconds in which a peer is to say something about a model


class ServerInfo:
    """Tells about the server, the models of a worker, and those of peers, for whose answer alone it waits."""

    def __init__(self, worker: InferWorker, check_ready: Callable[[], None], services: CallServices) -> None:
        """`check_ready` raises the Unavailable that calls would meet now."""
        self._worker = worker
        self._services = services
        self._check_ready = check_ready

    def __call__(self, ask: AskInfo) -> dict[str, Any]:
        """Returns the body of the answer. May wait for a peer. Raises NotFound, and what a peer answers; Unauthorized
        and LimitReached for an API key."""
        account = (
            None if self._services.accounts is None or not ask.caller else self._services.accounts.enter(ask.caller)
        )
        match ask.subject:
            case "key":
                return {}
            case "admit":
                if account is not None:
                    account.admit("POST")
                return {}
            case "live":
                return {}
            case "ready":
                return {"ready": self._is_ready()}
            case "server":
                server = metadata.server_metadata()
                server.extensions = [name for name in server.extensions if name not in _NOT_HERE]
                return msgspec.structs.asdict(server)
            case "model":
                target = ModelTarget(ask.model, ask.version)
                body: dict[str, Any] = msgspec.to_builtins(self._metadata(target, account))
                return body
            case "model_ready":
                return {"ready": self._is_model_ready(ModelTarget(ask.model, ask.version), account)}
            case _:
                return {"models": msgspec.to_builtins(metadata.index(self._worker.standings()))}

    def _is_ready(self) -> bool:
        try:
            self._check_ready()
        except CorosrvError:
            return False
        return True

    def _metadata(self, target: ModelTarget, account: CallAccount | None) -> metadata.ModelMetadata:
        try:
            return metadata.model_metadata(self._worker.find(target), self._worker.standings())
        except CorosrvError as error:
            return msgspec.json.decode(self._told_by_peer(target, "", error, account), type=metadata.ModelMetadata)

    def _told_by_peer(
        self, target: ModelTarget, path: str, own_error: CorosrvError, account: CallAccount | None
    ) -> bytes:
        """Returns what a peer answers for a model. Waits. Raises its error, and this server's own if none is asked."""
        terms = Terms(deadline=time.monotonic() + _PATIENCE, account=account)
        job = InferJob(target, ForwardRequest(method="GET", path=path), terms=terms)
        if (answers := self._services.delegate(job, own_error)) is None:
            raise own_error
        with contextlib.closing(answers):
            for item in answers:
                if isinstance(item, AnswerBody):
                    return item.data
                if isinstance(item, InferEnd) and item.error is not None:
                    raise item.error
        raise own_error

    def _is_model_ready(self, target: ModelTarget, account: CallAccount | None) -> bool:
        try:
            card = self._worker.find(target)
        except (NotFound, Unavailable) as error:
            try:
                self._told_by_peer(target, "/ready", error, account)
            except CorosrvError:
                return False
            return True
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
        services: CallServices,
    ) -> None:
        """Takes the worker that clients ask about, and what the server does for their calls.

        `check_ready` raises the Unavailable that calls would meet now. Raises SettingsError where grpcio is not
        installed.
        """
        check_grpcio()
        self._config = config
        self.stats = GrpcStats()
        self.has_served = False  # a process was READY once: the front as such works, and deaths are its own affair
        inform = ServerInfo(worker, check_ready, services)
        super().__init__(lambda: GrpcLink(self._config, services, inform, self.stats))

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
