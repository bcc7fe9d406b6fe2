"""The part of a server that speaks KServe's v2 protocol, over REST and gRPC, for whatever runs inference calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint
from prometheus_client.registry import Collector

from corosrv.errors import CorosrvError
from corosrv.http.body_reader import BodyReader
from corosrv.jobs import State
from corosrv.jobs.infer import InferWorker
from corosrv.kserve import errors, object_routes, routes
from corosrv.objects.store import ObjectStore
from corosrv.settings import KserveSettings, ServerSettings


class KservePart:
    """Serves handlers and language models to clients of the v2 protocol. It starts nothing of its own but gRPC."""

    def __init__(
        self,
        settings: KserveSettings,
        server: ServerSettings,
        worker: InferWorker,
        objects: ObjectStore | None,
        bodies: BodyReader,
        check_ready: Callable[[], None],
    ) -> None:
        """`worker`: runs the calls. `check_ready`: raises the Unavailable of other parts."""
        self._settings = settings
        self._server = server
        self._worker = worker
        self._objects = objects
        self._bodies = bodies
        self._check_ready = check_ready

    @property
    def state(self) -> State:
        return State.READY

    def check(self) -> None:
        """Does nothing: whether calls are taken is for the parts to say that run them."""

    def stats(self) -> None:
        """Returns None: nothing is decoded here."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def collectors(self) -> tuple[Collector, ...]:
        return ()

    def document(self) -> None:
        """Returns None: each route describes itself."""

    def has_path(self, path: str) -> bool:
        return errors.has_path(path)

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return errors.error_body(error)

    def blueprints(self) -> tuple[Blueprint, ...]:
        blueprints = [
            routes.blueprint(
                self._worker,
                self._bodies,
                max_body_bytes=self._settings.v2_max_body_bytes,
                check_ready=self._check_ready,
            )
        ]
        if self._objects is not None:
            blueprints.append(object_routes.blueprint(self._objects, self._bodies))
        return tuple(blueprints)
