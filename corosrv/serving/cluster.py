"""The part of a server that shares with other fronts through Redis: its link, who serves what, and permits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from flask import Blueprint, Response
from gevent import monkey

from corosrv.base.errors import CorosrvError, SettingsError
from corosrv.contracts.settings import ClusterSettings
from corosrv.fleet.cluster.connection import RedisClient, check_server, parse_info
from corosrv.fleet.cluster.group_aborts import AbortsGroup, GroupAborts
from corosrv.fleet.cluster.health import ClusterCollector
from corosrv.fleet.cluster.key_limits import KeyLimits
from corosrv.fleet.cluster.key_records import KeyRecords
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.fleet.cluster.permits import PermitShares
from corosrv.fleet.cluster.registry import FrontOffer, FrontRecord, FrontRegistry, new_front_id
from corosrv.fleet.upstreams.policies import rank_name
from corosrv.fleet.upstreams.pool import UpstreamPool
from corosrv.fleet.upstreams.upstream import Upstream
from corosrv.web.http.reply import json_response

log = logging.getLogger("corosrv.cluster")


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
        self._permits: PermitShares | None = None
        self._shared: list[KeyRecords | KeyLimits | PermitShares] = []  # in the order in which they start
        self._is_started = False
        self._is_joined = False

    def key_records(self, max_bytes: int, lifetime: float) -> KeyRecords:
        """Makes the shared records of idempotency keys; see KeyRecords. They live as long as the cluster."""
        records = KeyRecords(self.client, self.names, max_bytes, lifetime)
        self._shared.append(records)
        return records

    def key_limits(self) -> KeyLimits:
        """Makes what shares the limits of API keys from the start on."""
        limits = KeyLimits(self.client, self.names, self.front)
        self._shared.append(limits)
        return limits

    def share_permits(self, pool: UpstreamPool) -> None:
        """Divides the permits of upstreams among all servers that know them, from the start on."""

        def lend(upstream: Upstream) -> None:
            permits.lend(rank_name(upstream.id), upstream)

        permits = self._permits = PermitShares(self.client, self.names, self.front, pool.dispatcher)
        self._shared.append(permits)
        for upstream in pool.upstreams:
            lend(upstream)
        pool.on_add, pool.on_leave = lend, permits.forget

    def start(self) -> None:
        """Asks Redis once, and joins the other fronts; where it does not answer, this one joins them when it does.

        Raises SettingsError where it answers and cannot be relied on, see check_server(), or refuses the password.
        """
        if not monkey.is_module_patched("socket"):
            raise SettingsError("COROSRV_REDIS_URL needs a server that waits through gevent: gunicorn -k gevent")
        self._is_started = True
        if self.client.ping():
            self._join()
        elif self.client.is_refused:
            raise SettingsError(f"COROSRV_REDIS_URL: {self.client.health.reason}")
        else:
            log.warning(
                "Redis at %s does not answer: this server is alone until it does (%s)",
                self.client.address, self.client.health.reason,
            )  # fmt: skip
            self.client.health.on_change(self._on_link)
            if self._permits is not None:
                self._permits.be_alone()
        self.client.start()

    def _on_link(self, is_up: bool) -> None:
        if is_up and not self._is_joined:
            gevent.spawn(self._join_late)

    def _join_late(self) -> None:
        try:
            self._join()
        except CorosrvError as error:
            log.error("this server stays alone: %s", error)

    def _join(self) -> None:
        """Checks Redis, registers this front, and begins to share. Waits. Raises SettingsError, RedisUnavailable."""
        info = self.client.execute("INFO").decode("utf-8", "replace")
        for warning in check_server(parse_info(info)):
            log.warning("%s", warning)
        if self._is_joined or not self._is_started:
            return
        self._is_joined = True
        self.registry.start()
        self.groups.start()
        for shared in self._shared:
            shared.start()

    def stop(self) -> None:
        """Tells the other fronts that this one serves nothing any more. Twice is harmless."""
        self.registry.leave()

    def close(self) -> None:
        """Leaves the other fronts, and closes the connections. Twice is harmless."""
        if self._is_started:
            self._is_started = False
            for shared in reversed(self._shared):
                shared.close()
            self.groups.close()
            self.registry.close()
            self.client.close()

    def redis_state(self) -> str:
        """Returns `up` or `down`: whether Redis answers; `alone` if this server has not joined the others yet."""
        return self.client.health.state.value if self._is_joined else "alone"

    def collector(self) -> ClusterCollector:
        return ClusterCollector(self.client.health, lambda: len(self.registry.other_fronts), self._held_permits)

    def _held_permits(self) -> Iterator[tuple[str, int]]:
        """Yields the ids of upstreams and the permits of each that this server holds."""
        for share in () if self._permits is None else self._permits.shares:
            yield share.resource, share.worker.concurrency if share.held is None else share.held

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
