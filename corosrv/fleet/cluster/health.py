"""Keeps the state of the link to Redis: probes it once a second, and tells listeners and Prometheus.

URLs may name sentinels: `sentinel_pool` connects to the Redis server that these know as the primary.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit

import gevent
import gevent.event
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.contracts.metrics import metric

log = logging.getLogger("corosrv.cluster")

PROBE_INTERVAL = 1.0  # seconds between two probes while Redis answers
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two while it does not, before jitter

Listener = Callable[[bool], object]


class LinkState(Enum):
    """Tells whether Redis answers."""

    UP = "up"
    DOWN = "down"


class LinkHealth:
    """Holds the state of the link to Redis, and tells each change once: to the log and to listeners.

    Belongs to one thread. It is down until the first success.
    """

    def __init__(self, address: str) -> None:
        """`address`: of Redis, for the log; without a password."""
        self._address = address
        self._listeners: list[Listener] = []
        self.state = LinkState.DOWN
        self.reason = "not connected yet"  # why it is down
        self.n_losses = 0
        self.has_failed = False  # a ping has found it away, and another one will find it back

    @property
    def is_up(self) -> bool:
        return self.state is LinkState.UP

    def on_change(self, listener: Listener) -> None:
        """Adds a listener, called with True when Redis answers again and with False when it no longer does.

        It runs at once, in whichever greenlet noticed the change, and must not wait: it may wake or spawn what does.
        """
        self._listeners.append(listener)

    def succeed(self) -> None:
        """Records that Redis answered."""
        if not self.is_up:
            self._change(LinkState.UP, "")
            log.info("Redis at %s answers", self._address)

    def fail(self, reason: str) -> None:
        """Records that Redis did not answer."""
        if self.is_up:
            self.n_losses += 1
            self._change(LinkState.DOWN, reason)
            log.warning("Redis at %s is away: %s", self._address, reason)
        self.reason = reason

    def _change(self, state: LinkState, reason: str) -> None:
        self.state, self.reason = state, reason
        for listener in tuple(self._listeners):
            try:
                listener(self.is_up)
            except Exception:
                log.exception("a listener to the link to Redis failed")


class LinkProbe:
    """Asks Redis once a second whether it answers; while it does not, after pauses that grow and are jittered."""

    def __init__(self, health: LinkHealth, ping: Callable[[], object]) -> None:
        """`ping`: asks Redis, tells the health how that went, and raises nothing."""
        self._health = health
        self._ping = ping
        self._is_lost = gevent.event.Event()
        self._greenlet: gevent.Greenlet | None = None
        health.on_change(lambda is_up: None if is_up else self._is_lost.set())

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._is_lost.clear()
            self._ping()
            if self._health.is_up:
                pause = _FIRST_PAUSE
                self._is_lost.wait(PROBE_INTERVAL)
            else:
                gevent.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, _LONGEST_PAUSE)


class ClusterCollector(Collector):
    """Reads the numbers at each scrape."""

    def __init__(
        self, health: LinkHealth, n_others: Callable[[], int], permits: Callable[[], Iterable[tuple[str, int]]]
    ) -> None:
        """`n_others`: counts the other fronts; `permits`: names upstreams, and the permits of each that are held."""
        self._health = health
        self._n_others = n_others
        self._permits = permits

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("corosrv_redis_up", "1 while Redis answers", self._health.is_up)
        yield CounterMetricFamily("corosrv_redis_losses", "Times that Redis was lost", self._health.n_losses)
        yield GaugeMetricFamily("corosrv_cluster_fronts", "Other fronts known through Redis", self._n_others())
        held = (([name], n_permits) for name, n_permits in self._permits())
        words = "Permits of an upstream that this server holds"
        yield metric(GaugeMetricFamily, "corosrv_upstream_permits_held", words, ["upstream"], held)


SENTINEL = "redis+sentinel://"


def is_sentinel(url: str) -> bool:
    """Tells whether a URL names sentinels, which know the primary, and not the server itself."""
    return url.startswith(SENTINEL)


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """Holds the parts of a URL with sentinels. User and password are those of Redis, and of the sentinels."""

    addresses: Sequence[tuple[str, int]]
    service: str
    database: int
    username: str | None
    password: str | None

    @property
    def public_address(self) -> str:
        """Names the service and its sentinels: no password."""
        return f"{self.service} by {','.join(f'{host}:{port}' for host, port in self.addresses)}"

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Reads `redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/0`. Raises ValueError."""
        authority, _, path = url.removeprefix(SENTINEL).partition("/")
        credentials, _, hosts = authority.rpartition("@")
        username, _, password = credentials.partition(":")
        service, _, database = path.partition("/")
        parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
        if not service or "?" in path or not all(part.hostname for part in parts):
            raise ValueError("a host or the name of the service is missing")
        return cls(
            [(part.hostname or "", part.port or 26379) for part in parts],
            unquote(service),
            int(database or 0),
            unquote(username) or None,
            unquote(password) or None,
        )


def sentinel_pool(url: str, n_connections: int, options: dict[str, Any]) -> Any:
    """Makes a pool whose connections ask the sentinels for the primary. It does not wait for a free one.

    `options`: those of each connection, to Redis and to the sentinels. Raises ValueError for a URL that is none.
    """
    parts = SentinelUrl.parse(url)
    own = {} if "credential_provider" in options else {"username": parts.username, "password": parts.password}
    options = {**options, **own}
    sentinel = importlib.import_module("redis.sentinel").Sentinel(parts.addresses, sentinel_kwargs=options)
    return sentinel.master_for(
        parts.service, db=parts.database, max_connections=n_connections, **options
    ).connection_pool
