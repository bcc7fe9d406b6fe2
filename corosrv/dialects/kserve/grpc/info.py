"""Answers to what the gRPC process asks without running anything, as REST's bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError, NotFound, Unavailable
from corosrv.contracts.jobs.infer import InferWorker, ModelTarget
from corosrv.dialects.kserve import metadata
from corosrv.dialects.kserve.grpc.messages import AskInfo

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
