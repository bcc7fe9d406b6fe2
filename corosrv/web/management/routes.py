"""The management API over HTTP: its blueprint, and the JSON values of workers, pools, queues, objects and replicas."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import HTTPException

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError, NotFound, Refused
from corosrv.contracts.jobs import State

if TYPE_CHECKING:
    from corosrv.workers.dispatch.dispatcher import Dispatcher
    from corosrv.workers.dispatch.stats import KeyStats
    from corosrv.workers.manager.pool_memory import Place
    from corosrv.workers.manager.worker_pool import WorkerPool
    from corosrv.workers.objects import ObjectStore


def worker_view(place: Place, now: float) -> dict[str, Any]:
    """Shows the process that a place has, or had last. `now`: of time.monotonic()."""
    worker = place.worker
    assert worker is not None
    heartbeat = worker.last_heartbeat
    return {
        "id": place.id,
        "pool": place.pool,
        "pid": worker.pid,
        "incarnation": place.incarnation,
        "state": place.state.value,
        "reason": worker.reason,
        "keys_at_loss": list(worker.keys_at_loss),
        "was_ready": place.ready_at is not None,
        "is_outgoing": place.is_outgoing,
        "models": [{"name": card.name, "version": card.version} for card in worker.handlers if card.capability is None],
        "capabilities": [card.capability for card in worker.handlers if card.capability is not None],
        "in_flight": worker.in_flight,
        "concurrency": sum(group.permits.total for group in worker.groups),
        "restarts": place.incarnation - 1,
        "last_heartbeat_ms": None if heartbeat is None else round((now - heartbeat) * 1000),
        "age_ms": round((now - place.started_at) * 1000),
        "rss": worker.rss,
        "served": worker.served,
        "failed": worker.failed,
    }


def pool_view(pool: WorkerPool, queues: Iterable[KeyStats]) -> dict[str, Any]:
    """Shows a pool, with the planner's words. `queues`: of all keys."""
    memory, crashes = pool.memory, pool.memory.crashes
    keys = {handler.key for handler in pool.card.handlers}
    waiting = [queue for queue in queues if queue.key in keys]
    return {
        "name": pool.name,
        "min": memory.least,
        "max": memory.most,
        "target": memory.target,
        "workers": dict(Counter(place.state.value for place in pool.shown_places)),
        "depth": sum(queue.depth for queue in waiting),
        "oldest_ms": _milliseconds(max((queue.oldest or 0.0 for queue in waiting), default=0.0)),
        "gpus": memory.claim.gpus,
        "memory_mb": memory.claim.memory / 1e6,
        "priority": memory.priority,
        "cold_start_ms": _milliseconds(memory.cold_start),
        "crashlooping": crashes.is_looping,
        "restarts": dict(pool.restarts),
        "last_failure": crashes.last_reason,
        "decision": pool.reason,
    }


def queue_view(queue: KeyStats) -> dict[str, Any]:
    return {
        "key": queue.key,
        "state": queue.state,
        "pools": list(queue.pools),
        "depth": queue.depth,
        "max_depth": queue.max_depth,
        "oldest_ms": _milliseconds(queue.oldest),
        "in_flight": queue.in_flight,
        "permits": queue.permits,
        "wait_ewma_ms": _milliseconds(queue.wait_mean),
        "service_ewma_ms": _milliseconds(queue.service_mean),
        "arrivals_per_s": round(queue.arrival_rate, 3),
        "outcomes": dict(queue.outcomes),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


MAX_BODY = 65_536  # bytes

Body = TypeVar("Body")


def make_app(
    find_state: Callable[[], State], apis: Sequence[Blueprint], check: Callable[[], None] = lambda: None
) -> Flask:
    """Makes the API of these blueprints, each named after what it manages.

    `find_state`: returns the state of what is managed. `check` raises for a request that may not pass.
    """
    app = Flask("corosrv.management", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.url_map.merge_slashes = False  # keys of queues may have several in a row
    app.before_request(check)
    app.register_error_handler(CorosrvError, _render)
    app.register_error_handler(HTTPException, _render_http)
    for api in apis:
        app.register_blueprint(api)
    started_at = time.monotonic()

    @app.get("/v1/server")
    def server() -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": find_state().value,
            "uptime_ms": round((time.monotonic() - started_at) * 1000),
            "manages": [api.name for api in apis],
        }

    return app


def decode_body(kind: type[Body]) -> Body:
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


def queue_blueprint(dispatchers: Sequence[Dispatcher]) -> Blueprint:
    api = Blueprint("queues", __name__)

    @api.get("/v1/queues")
    def all_queues() -> dict[str, Any]:
        return {"queues": [queue_view(queue) for dispatcher in dispatchers for queue in _queues_of(dispatcher)]}

    @api.post("/v1/queues/<path:key>/abort")
    def abort(key: str) -> dict[str, Any]:
        owners = [dispatcher for dispatcher in dispatchers if any(queue.key == key for queue in _queues_of(dispatcher))]
        if not owners:
            raise NotFound(f"there is no queue {key[:120]!r}", "key")
        return {"aborted": sum(dispatcher.abort(key) for dispatcher in owners)}

    return api


def _queues_of(dispatcher: Dispatcher) -> Iterable[KeyStats]:
    return dispatcher.stats().keys


MAX_LISTED = 1000  # objects, those read last


def object_blueprint(objects: ObjectStore) -> Blueprint:
    api = Blueprint("objects", __name__)

    @api.get("/v1/objects")
    def all_objects() -> dict[str, Any]:
        refs = [msgspec.to_builtins(ref) for ref in objects.refs()[-MAX_LISTED:]]
        return {"objects": refs, "stats": msgspec.to_builtins(objects.stats)}

    return api


def peer_blueprint(replica_id: str, peer_views: Callable[[], Sequence[dict[str, Any]]]) -> Blueprint:
    """Makes the routes. `replica_id`: of this server; `peer_views`: shows each peer."""
    api = Blueprint("peers", __name__)

    @api.get("/v1/peers")
    def all_peers() -> dict[str, Any]:
        return {"replica": replica_id, "peers": peer_views()}

    return api
