"""Shows and aborts the queues of a server's dispatchers, over the management API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from flask import Blueprint

from corosrv.base.errors import NotFound
from corosrv.web.management.views import queue_view
from corosrv.workers.dispatch.stats import DispatchStats, KeyStats


class HasQueues(Protocol):
    """A dispatcher as this API sees it."""

    def stats(self) -> DispatchStats: ...

    def abort(self, key: str) -> int: ...


def blueprint(dispatchers: Sequence[HasQueues]) -> Blueprint:
    """Makes the routes."""
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


def _queues_of(dispatcher: HasQueues) -> Iterable[KeyStats]:
    return dispatcher.stats().keys
