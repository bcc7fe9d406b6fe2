"""The part of a server that lets other replicas answer for it, and answers for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import gevent
from flask import Blueprint
from flask.sansio.scaffold import Scaffold
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError, ModelFailed, Refused, SettingsError, ShuttingDown
from corosrv.contracts.jobs import State
from corosrv.contracts.settings import PeerSettings
from corosrv.contracts.settings.fleet import new_replica_id
from corosrv.fleet.cluster.registry import FrontRecord
from corosrv.gateway.delegation import announcement
from corosrv.gateway.delegation.announcement import MAX_OFFERS, Announcement, OfferedHandler
from corosrv.gateway.delegation.delegator import DelegationOptions, Delegator
from corosrv.gateway.delegation.hook import DelegationHook, peer_view
from corosrv.gateway.delegation.peer import FoundPeers, Peer, PeerAsker, PeerNotice, PeerSeal, parse_peer
from corosrv.gateway.delegation.trip import DelegationCollector, DelegationStats, PeerGuard
from corosrv.gateway.forwarding.forwarder import error_body
from corosrv.gateway.forwarding.homes import ResponseHomes
from corosrv.serving.part import Part, ServerContext, why_not_served
from corosrv.web.management import routes as peer_routes


class PeerPart(Part):
    """Delegates what this server cannot serve, once it is started, and announces what it can."""

    def __init__(self, context: ServerContext, settings: PeerSettings) -> None:
        """Raises SettingsError for a wrong peer."""
        server = context.settings.server
        self._context = context
        self._drain_s = server.drain_s
        self._failure = ""
        self._is_stopping = False
        self._token = settings.peer_token
        self._stats = DelegationStats()
        named = tuple(map(parse_peer, settings.urls))
        _check_urls([peer.record.url for peer in named])
        self._asker = PeerAsker(settings.replica_id or new_replica_id(), named, settings.peer_token)
        self.roster = self._asker.roster
        self._own_url = settings.peer_url and _own_url(settings.peer_url)
        self._seal = self._found = None
        if (cluster := context.settings.cluster) is not None and self._own_url:
            self._seal = PeerSeal(settings.peer_token, cluster.redis_namespace)
            self._found = FoundPeers(self._asker, self._seal, self._own_url)
        self.guard = PeerGuard(self.roster.own_id, settings.peer_token, self._stats)
        options = DelegationOptions(
            token=settings.peer_token,
            max_body_bytes=max(server.max_body_bytes, context.settings.kserve.v2_max_body_bytes),
            write_timeout=server.write_timeout_s,
            passes_keys=not server.needs_key,
            delegate_max=settings.delegate_max,
            delegate_on_full=settings.delegate_on_full,
        )
        self.homes = ResponseHomes("peers")
        delegator = Delegator(
            self.roster,
            self._asker.peers,
            context.bodies,
            context.http_stats,
            self._stats,
            options,
            context.error_body,
            self._models_here,
            self.homes,
        )
        context.delegate = delegator.answers
        self._hook = DelegationHook(self.roster, delegator, context.bodies, context.error_body)

    def start(self) -> None:
        self._failure = why_not_served("peers")
        if not self._failure:
            self._asker.start()

    def notice(self, front: str) -> PeerNotice:
        """Returns what this server announces to other fronts under its id there: an address with which it is found."""
        return PeerNotice(front) if self._seal is None else self._seal.notice(front, self._own_url)

    def see(self, fronts: Iterable[FrontRecord]) -> None:
        """Takes what all other fronts announce now. Never waits."""
        if self._found is not None:
            self._found.see(PeerNotice(one.id, one.served.peer_url, one.served.peer_proof) for one in fronts)

    def announce(self) -> Announcement:
        """Says what this replica serves now: nothing while it stops."""
        if self._is_stopping:
            return Announcement(self.roster.own_id)
        formats = dict.fromkeys(chain.from_iterable(part.formats for part in self._context.parts))
        calls = self._context.calls if "v2" in formats else None
        cards = [] if calls is None else [standing.card for standing in calls.standings()]
        return Announcement(
            self.roster.own_id,
            list(formats),
            list(islice(self._models_here(), MAX_OFFERS)),
            [OfferedHandler(card.name, card.version, card.capability) for card in cards[:MAX_OFFERS]],
        )

    def _models_here(self) -> Iterator[str]:
        """Yields the names of the models that this server itself serves in generating dialects."""
        return chain.from_iterable(part.model_names() for part in self._context.parts)

    @property
    def state(self) -> State:
        if self._failure:
            return State.FAILED
        return State.DRAINING if self._is_stopping else State.READY

    def check(self) -> None:
        """Raises the Unavailable that calls would meet now. Peers that are gone are no reason: others may come back."""
        if self._failure:
            raise ModelFailed(self._failure)
        if self._is_stopping:
            raise ShuttingDown("the server is shutting down")

    def stop(self) -> None:
        """Lets answers of peers end in `drain_s`; a second call ends them at once. Never waits."""
        if self._is_stopping:
            self.hurry()
            return
        self._is_stopping = True
        self._ending = gevent.spawn(self._end)

    def _end(self) -> None:
        with gevent.Timeout(self._drain_s, False):
            while self._stats.in_flight:
                gevent.sleep(0.1)
        self.hurry()

    def hurry(self) -> None:
        for peer in self._asker.peers.values():
            peer.abort(ShuttingDown("the server is shutting down"))

    def close(self) -> None:
        self._asker.close()
        self.hurry()
        for peer in self._asker.peers.values():
            peer.close()

    def collectors(self) -> tuple[Collector, ...]:
        return (DelegationCollector(self._stats, lambda: len(self.roster.ready(time.monotonic()))),)

    def apis(self) -> tuple[Blueprint, ...]:
        return (peer_routes.peer_blueprint(self.roster.own_id, self._views),)

    def _views(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [peer_view(peer, now) for peer in self.roster.peers]

    def blueprints(self) -> tuple[Blueprint, ...]:
        return (announcement.blueprint(self.announce),)

    def add_hook(self, scaffold: Scaffold) -> None:
        """Has every answer looked at before those hooks that were added earlier."""
        self._hook.add(scaffold)

    def has_path(self, path: str) -> bool:
        return path == announcement.PATH

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return error_body(error, path)


def _own_url(text: str) -> str:
    """Returns the URL by which this server is found, as its peers write it. Raises SettingsError for a wrong one."""
    try:
        return Peer(text.strip()).record.url
    except Refused as error:
        raise SettingsError(f"COROSRV_PEER_URL: {error}") from None


def _check_urls(urls: list[str]) -> None:
    for url in urls:
        if urls.count(url) > 1:
            raise SettingsError(f"COROSRV_PEERS: {url} is there twice")
