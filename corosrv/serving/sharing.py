"""The part of a server by which several fronts share the calls that wait, through Redis."""

from __future__ import annotations

import os
import secrets
import socket

from gevent import monkey

from corosrv.cluster.connection import RedisClient
from corosrv.cluster.keys import KeyNames
from corosrv.cluster.queue_link import QueueLink
from corosrv.cluster.queue_names import QueueNames
from corosrv.dispatch.dispatcher import Dispatcher
from corosrv.errors import SettingsError
from corosrv.settings import ClusterSettings

_LONGEST_NAME = 60  # characters of a machine's name


class Sharing:
    """Shares the calls of this server's dispatchers with other fronts, once it is started."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Raises SettingsError."""
        self._settings = settings
        self._client = RedisClient(settings.redis_url, settings.redis_timeout)
        self._link = QueueLink(self._client, QueueNames(KeyNames(settings.redis_namespace), new_front_id()))
        self._is_started = False

    def add(self, domain: str, dispatcher: Dispatcher, *, max_calls: int, max_bytes: int) -> None:
        """Shares one dispatcher's calls. `domain`: the same word for the same dispatcher of every front."""
        falls_back = self._settings.redis_fallback == "local"
        queue = self._link.add(domain, dispatcher, max_calls=max_calls, max_bytes=max_bytes, falls_back=falls_back)
        dispatcher.share(queue)

    def start(self) -> None:
        """Begins to share. Waits for Redis, once, and goes on without it. Raises SettingsError."""
        if not monkey.is_module_patched("socket"):
            raise SettingsError("COROSRV_REDIS_URL needs a server that waits through gevent: gunicorn -k gevent")
        self._is_started = True
        self._client.ping()
        self._client.start()
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
            self._client.close()


def new_front_id() -> str:
    """Makes the id of this process among the fronts, which no other has at any time."""
    return f"{socket.gethostname()[:_LONGEST_NAME]}-{os.getpid()}-{secrets.token_hex(4)}"
