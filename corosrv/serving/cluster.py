"""The part of a server that shares with other fronts through Redis: its link, who serves what, and calls that wait."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import gevent
from flask import Blueprint, Response
from gevent import monkey

from corosrv.base.errors import RedisRefused, RedisUnavailable, SettingsError
from corosrv.contracts.settings import ClusterSettings
from corosrv.fleet.cluster.connection import RedisClient, check_server, parse_info
from corosrv.fleet.cluster.group_aborts import AbortsGroup, GroupAborts
from corosrv.fleet.cluster.health import ClusterCollector
from corosrv.fleet.cluster.key_records import KeyRecords
from corosrv.fleet.cluster.queue_link import QueueLink
from corosrv.fleet.cluster.queue_names import KeyNames, QueueNames
from corosrv.fleet.cluster.registry import FrontOffer, FrontRecord, FrontRegistry, new_front_id
from corosrv.web.http.reply import json_response
from corosrv.workers.dispatch.dispatcher import Dispatcher

log = logging.getLogger("corosrv.cluster")

START_SECONDS = 10.0  # for which a start waits for Redis
_PAUSE = 0.5  # seconds between two tries


class Cluster:
    """Holds what this server shares: `client` for commands, `names` of keys, `front`, its id, and the registry."""

    def __init__(self, settings: ClusterSettings, describe: Callable[[], FrontOffer], abort_group: AbortsGroup) -> None:
        """`describe`: says what this server serves; `abort_group`: ends requests of a group here.

        Raises SettingsError for a wrong URL, and without redis-py."""
        self.client = RedisClient(settings.redis_url, settings.redis_timeout, settings.redis_password_file)
        self.names = KeyNames(settings.redis_namespace)
        self.front = new_front_id()
        self.registry = FrontRegistry(self.client, self.names, self.front, describe)
        self.groups = GroupAborts(self.client, self.names, self.front, abort_group)
        self._key_records: KeyRecords | None = None
        self._is_started = False

    def key_records(self, max_bytes: int, lifetime: float) -> KeyRecords:
        """Makes the shared records of idempotency keys; see KeyRecords. They live as long as the cluster."""
        self._key_records = KeyRecords(self.client, self.names, max_bytes, lifetime)
        return self._key_records

    def start(self) -> None:
        """Waits START_SECONDS for Redis at most, checks it, and registers this front.

        Raises SettingsError where Redis does not answer, or cannot be relied on; see check_server().
        """
        if not monkey.is_module_patched("socket"):
            raise SettingsError("COROSRV_REDIS_URL needs a server that waits through gevent: gunicorn -k gevent")
        self._await_redis()
        for warning in check_server(parse_info(self.client.execute("INFO").decode("utf-8", "replace"))):
            log.warning("%s", warning)
        self._is_started = True
        self.client.start()
        self.registry.start()
        self.groups.start()
        if self._key_records is not None:
            self._key_records.start()

    def _await_redis(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.execute("PING")
                return
            except RedisRefused as error:
                raise SettingsError(f"COROSRV_REDIS_URL: {error}") from None
            except RedisUnavailable:
                if time.monotonic() >= deadline:
                    reason = self.client.health.reason
                    raise SettingsError(
                        f"COROSRV_REDIS_URL: Redis at {self.client.address} does not answer: {reason}"
                    ) from None
            gevent.sleep(_PAUSE)

    def stop(self) -> None:
        """Tells the other fronts that this one serves nothing any more. Twice is harmless."""
        self.registry.leave()

    def close(self) -> None:
        """Leaves the other fronts, and closes the connections. Twice is harmless."""
        if self._is_started:
            self._is_started = False
            if self._key_records is not None:
                self._key_records.close()
            self.groups.close()
            self.registry.close()
            self.client.close()

    def redis_state(self) -> str:
        """Returns `up` or `down`: whether Redis answers."""
        return self.client.health.state.value

    def collector(self) -> ClusterCollector:
        return ClusterCollector(self.client.health, lambda: len(self.registry.other_fronts))

    def api(self) -> Blueprint:
        """Returns what operators can ask: which fronts there are, and what they serve."""
        routes = Blueprint("fronts", __name__)

        @routes.get("/v1/fronts")
        def fronts() -> Response:
            others = [_describe(record) for record in self.registry.other_fronts]
            return json_response({"id": self.front, "redis": self.redis_state(), "others": others})

        return routes


def _describe(record: FrontRecord) -> dict[str, Any]:
    handlers = {domain: [card.key for card in cards] for domain, cards in record.served.handlers.items()}
    return {"id": record.id, "host": record.served.host, "models": record.served.models, "handlers": handlers}


_ELSEWHERE = "other fronts"  # as a pool of workers


class Sharing:
    """Shares the calls of this server's dispatchers with other fronts, once it is started."""

    def __init__(self, settings: ClusterSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._registry = cluster.registry
        self._link = QueueLink(cluster.client, QueueNames(cluster.names, cluster.front))
        self._is_started = False

    def add(self, domain: str, dispatcher: Dispatcher, *, max_calls: int, max_bytes: int) -> None:
        """Shares one dispatcher's calls. `domain`: the same word for the same dispatcher of every front."""
        falls_back = self._settings.redis_fallback == "local"
        queue = self._link.add(domain, dispatcher, max_calls=max_calls, max_bytes=max_bytes, falls_back=falls_back)
        dispatcher.share(queue)
        self._registry.on_change(functools.partial(self._expect_elsewhere, domain, dispatcher))

    def _expect_elsewhere(self, domain: str, dispatcher: Dispatcher) -> None:
        """Tells a dispatcher which handlers other fronts serve, so that it takes calls of those as well."""
        if cards := self._registry.handlers(domain):
            dispatcher.expect(_ELSEWHERE, cards, is_elsewhere=True)
        else:
            dispatcher.forget(_ELSEWHERE)

    def start(self) -> None:
        """Begins to share. The cluster is started before."""
        self._is_started = True
        self._link.start()

    def stop(self) -> None:
        """Takes nothing more from other fronts, and gives them nothing. Twice is harmless."""
        self._link.stop()

    @property
    def is_ending(self) -> bool:
        """Tells whether calls of other fronts still run here."""
        return len(self._link.deliveries) > 0

    def hurry(self) -> None:
        """Does nothing: what runs here ends with the dispatchers."""

    def close(self) -> None:
        """Ends it, when the dispatchers have. Waits a second at most for what Redis is to hear. Twice is harmless."""
        if self._is_started:
            self._is_started = False
            self._link.close()
