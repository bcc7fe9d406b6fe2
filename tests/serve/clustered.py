"""Two real fronts that share one real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.serve.fronts import ServerFront, front
from tests.serve.server import servers
from tests.support.redis_server import RedisServer, redis_server


@dataclass
class ClusteredFronts:
    """Holds two fronts, and the Redis that they share."""

    redis: RedisServer
    a: ServerFront
    b: ServerFront


@contextmanager
def clustered_fronts(folder: Path, cache: Path) -> Iterator[ClusteredFronts]:
    """Starts them: both serve the synthetic model, and each the handlers of another application."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        started = stack.enter_context(servers(folder, cache))
        shared = {"redis_url": redis.url, "model": "synthetic:?tokens_per_s=50", "peer_token": "between-the-fronts"}
        a = stack.enter_context(front(started, worker_app="deploy/app/basic.py:app", **shared))
        b = stack.enter_context(
            front(started, worker_app="deploy/app/streaming.py:app", peers=a.server.url.removesuffix("/v1"), **shared)
        )
        yield ClusteredFronts(redis, a, b)
