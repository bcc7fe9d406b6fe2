"""Makes the JSON values of the management API from workers, pools and queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from corosrv.workers.dispatch.stats import KeyStats
from corosrv.workers.manager.place import Place
from corosrv.workers.manager.worker_pool import WorkerPool


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
    """Shows the queue of one key."""
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
