"""A real Redis server for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corosrv.fleet.cluster.connection import RedisClient
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """Runs a server that nobody kills."""
    with redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """Runs a server of this test's own, to be killed."""
    with redis_server() as server:
        yield server


@pytest.fixture
def client(redis: RedisServer) -> Iterator[RedisClient]:
    """Connects to an empty Redis, without a greenlet that watches it."""
    client = RedisClient(redis.url, timeout=5)
    client.execute("FLUSHALL")
    yield client
    client.close()
