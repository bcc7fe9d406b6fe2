"""Loads redis-py, an optional dependency, and makes connections of it that work under gevent."""

from __future__ import annotations

import importlib
import queue
from typing import Any

import gevent.queue
from gevent import monkey

from corosrv.base.errors import SettingsError


def load_redis() -> Any:
    """Returns the module redis. Raises SettingsError where it is not installed."""
    try:
        redis = importlib.import_module("redis")
        importlib.import_module("redis.backoff")
        importlib.import_module("redis.connection")
    except ImportError:
        raise SettingsError("COROSRV_REDIS_URL needs redis-py: pip install 'corosrv[redis]'") from None
    return redis


def is_cooperative() -> bool:
    """Tells whether sockets of this process wait through gevent."""
    return bool(monkey.is_module_patched("socket"))


def make_pool(url: str, n_connections: int, timeout: float, command_timeout: float) -> Any:
    """Makes a pool of connections, which waits `timeout / 2` seconds for a free one and as long to connect.

    Its connections wait `command_timeout` seconds for each answer, and send nothing a second time. Raises SettingsError
    for a URL that is none, in words that do not have it.
    """
    redis = load_redis()
    queue_class = gevent.queue.LifoQueue if is_cooperative() else queue.LifoQueue
    try:
        return redis.BlockingConnectionPool.from_url(
            url,
            max_connections=n_connections,
            timeout=timeout / 2,
            queue_class=queue_class,
            socket_connect_timeout=timeout / 2,
            socket_timeout=command_timeout,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            protocol=2,
        )
    except ValueError:  # whose words may hold the password
        raise SettingsError(
            "COROSRV_REDIS_URL is no URL of a Redis server, as redis://:PASSWORD@HOST:6379/0 (a password's special "
            "characters are written as %XX)"
        ) from None
