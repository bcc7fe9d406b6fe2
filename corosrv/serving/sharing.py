"""The part of a server by which several fronts share the calls that wait, through Redis."""

from __future__ import annotations

import functools

from corosrv.contracts.settings import ClusterSettings
from corosrv.fleet.cluster.queue_link import QueueLink
from corosrv.fleet.cluster.queue_names import QueueNames
from corosrv.serving.cluster import Cluster
from corosrv.workers.dispatch.dispatcher import Dispatcher

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
