"""Routes the management API: what workers, pools, queues and objects there are, and what an operator may do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from corosrv import __version__
from corosrv.dispatch.stats import DispatchStats
from corosrv.errors import CorosrvError, Forbidden, NotFound, Refused
from corosrv.management.views import pool_view, queue_view, worker_view
from corosrv.manager.manager import Manager
from corosrv.objects.store import ObjectStore

MAX_BODY = 65_536  # bytes
MAX_LISTED = 1000  # objects, those read last

Body = TypeVar("Body")


class PoolLimits(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the body of PUT /v1/pools/{name}."""

    min: int
    max: int


class HasQueues(Protocol):
    """Stands for the dispatcher as this API sees it."""

    def stats(self) -> DispatchStats: ...

    def abort(self, key: str) -> int: ...


def make_app(
    manager: Manager, queues: HasQueues, objects: ObjectStore, check: Callable[[], None] = lambda: None
) -> Flask:
    """Makes the API. `check` raises for a request that may not pass."""
    app = Flask("corosrv.management", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.url_map.merge_slashes = False  # keys of queues may have several in a row
    app.before_request(check)
    app.register_error_handler(CorosrvError, _render)
    app.register_error_handler(HTTPException, _render_http)
    started_at = time.monotonic()

    @app.get("/v1/server")
    def server() -> dict[str, Any]:
        uptime_ms = round((time.monotonic() - started_at) * 1000)
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": manager.state.value,
            "reason": manager.failure,
            "uptime_ms": uptime_ms,
        }

    _add_workers(app, manager)
    _add_pools(app, manager, queues)
    _add_queues(app, queues)
    _add_objects(app, objects)
    return app


def _add_workers(app: Flask, manager: Manager) -> None:
    @app.get("/v1/workers")
    def workers() -> dict[str, Any]:
        now = time.monotonic()
        places = [place for pool in manager.pools for place in pool.shown_places]
        return {"workers": [worker_view(place, now) for place in places]}

    @app.post("/v1/workers")
    def register() -> dict[str, Any]:
        raise Forbidden(
            "a worker registers through the connection that its server made, and not by an address",
            "registration_not_allowed",
        )

    @app.get("/v1/workers/<path:worker_id>")
    def worker(worker_id: str) -> dict[str, Any]:
        return worker_view(manager.place(worker_id), time.monotonic())

    @app.delete("/v1/workers/<path:worker_id>")
    def remove(worker_id: str) -> dict[str, Any]:
        incarnation = request.args.get("incarnation", "")
        if not incarnation.isascii() or not incarnation.isdecimal() or len(incarnation) > 9:
            raise Refused("incarnation must be the number of the process that is to end: GET shows it", "incarnation")
        manager.remove(worker_id, int(incarnation))
        return {"removed": worker_id}

    @app.post("/v1/workers/<path:worker_id>/drain")
    def drain(worker_id: str) -> tuple[dict[str, Any], int]:
        manager.drain(worker_id)
        return worker_view(manager.place(worker_id), time.monotonic()), 202


def _add_pools(app: Flask, manager: Manager, queues: HasQueues) -> None:
    @app.get("/v1/pools")
    def pools() -> dict[str, Any]:
        keys = queues.stats().keys
        return {"pools": [pool_view(pool, keys) for pool in manager.pools]}

    @app.get("/v1/pools/<name>")
    def pool(name: str) -> dict[str, Any]:
        return pool_view(manager.pool(name), queues.stats().keys)

    @app.put("/v1/pools/<name>")
    def scale(name: str) -> dict[str, Any]:
        limits = _body(PoolLimits)
        manager.scale(name, limits.min, limits.max)
        return pool_view(manager.pool(name), queues.stats().keys)


def _add_queues(app: Flask, queues: HasQueues) -> None:
    @app.get("/v1/queues")
    def all_queues() -> dict[str, Any]:
        return {"queues": [queue_view(queue) for queue in queues.stats().keys]}

    @app.post("/v1/queues/<path:key>/abort")
    def abort(key: str) -> dict[str, Any]:
        if all(queue.key != key for queue in queues.stats().keys):
            raise NotFound(f"there is no queue {key[:120]!r}", "key")
        return {"aborted": queues.abort(key)}


def _add_objects(app: Flask, objects: ObjectStore) -> None:
    @app.get("/v1/objects")
    def all_objects() -> dict[str, Any]:
        refs = [msgspec.to_builtins(ref) for ref in objects.refs()[-MAX_LISTED:]]
        return {"objects": refs, "stats": msgspec.to_builtins(objects.stats)}


def _body(kind: type[Body]) -> Body:
    """Reads the request's body. Raises Refused, which names the field at fault."""
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body is wrong: {error}") from None


def _render(error: CorosrvError) -> tuple[dict[str, Any], int]:
    return {"error": str(error)}, error.status


def _render_http(error: HTTPException) -> Response:
    answer = Response(msgspec.json.encode({"error": error.description}), error.code, mimetype="application/json")
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            answer.headers[name] = value
    return answer
