"""Shows and changes the workers and pools of an application, over the management API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from flask import Blueprint, request

from corosrv.base.errors import Forbidden, Refused
from corosrv.web.management.routes import decode_body, pool_view, worker_view
from corosrv.workers.dispatch.stats import KeyStats
from corosrv.workers.manager.manager import Manager


class PoolLimits(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the body of PUT /v1/pools/{name}."""

    min: int
    max: int


def blueprint(manager: Manager, find_queues: Callable[[], Iterable[KeyStats]]) -> Blueprint:
    """Makes the routes. `find_queues`: returns what is known of the queues of the application's handlers."""
    api = Blueprint("workers", __name__)
    _add_workers(api, manager)
    _add_pools(api, manager, find_queues)
    return api


def _add_workers(api: Blueprint, manager: Manager) -> None:
    @api.get("/v1/workers")
    def workers() -> dict[str, Any]:
        now = time.monotonic()
        return {"workers": [worker_view(place, now) for place in manager.shown_places]}

    @api.post("/v1/workers")
    def register() -> dict[str, Any]:
        raise Forbidden(
            "a worker registers through its connection, and not by an address: corosrv worker APP --join PATH",
            "registration_not_allowed",
        )

    @api.get("/v1/workers/<path:worker_id>")
    def worker(worker_id: str) -> dict[str, Any]:
        return worker_view(manager.place(worker_id), time.monotonic())

    @api.delete("/v1/workers/<path:worker_id>")
    def remove(worker_id: str) -> dict[str, Any]:
        incarnation = request.args.get("incarnation", "")
        if not incarnation.isascii() or not incarnation.isdecimal() or len(incarnation) > 9:
            raise Refused("incarnation must be the number of the process that is to end: GET shows it", "incarnation")
        manager.remove(worker_id, int(incarnation))
        return {"removed": worker_id}

    @api.post("/v1/workers/<path:worker_id>/drain")
    def drain(worker_id: str) -> tuple[dict[str, Any], int]:
        manager.drain(worker_id)
        return worker_view(manager.place(worker_id), time.monotonic()), 202


def _add_pools(api: Blueprint, manager: Manager, find_queues: Callable[[], Iterable[KeyStats]]) -> None:
    @api.get("/v1/pools")
    def pools() -> dict[str, Any]:
        queues = tuple(find_queues())
        shown = [pool_view(pool, queues) for pool in manager.pools]
        return {"pools": shown, "reason": manager.failure, "has_app": manager.has_app}

    @api.get("/v1/pools/<name>")
    def pool(name: str) -> dict[str, Any]:
        return pool_view(manager.pool(name), find_queues())

    @api.put("/v1/pools/<name>")
    def scale(name: str) -> dict[str, Any]:
        limits = decode_body(PoolLimits)
        manager.scale(name, limits.min, limits.max)
        return pool_view(manager.pool(name), find_queues())
