"""Follows channels of Redis on one connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import gevent
import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.fleet.cluster.connection import RedisClient

log = logging.getLogger("corosrv.cluster")

LONGEST_READ = 10.0  # seconds that a read waits
PAUSE = 1.0  # seconds before channels are subscribed to anew


class Subscription:
    """Hands over what is published on some channels, from its start on. Belongs to the hub's thread.

    What is published while Redis is away, or before it was subscribed to again, is missed.
    """

    def __init__(self, client: RedisClient, listeners: Mapping[str, Callable[[bytes], object]]) -> None:
        """`listeners`: called with each message of their channel. They must not wait."""
        self._client = client
        self._listeners = {channel.encode(): listener for channel, listener in listeners.items()}
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Follows them no more. Twice is harmless."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def _run(self) -> None:
        connection = self._client.open_blocking(LONGEST_READ)
        try:
            while True:
                try:
                    connection.send("SUBSCRIBE", *(channel.decode() for channel in self._listeners))
                    while True:
                        self._hand_over(connection.receive(LONGEST_READ))
                except CorosrvError:
                    connection.close()
                gevent.sleep(PAUSE)
        finally:
            connection.close()

    def _hand_over(self, reply: list[bytes] | None) -> None:
        if reply is None or reply[0] != b"message":
            return
        _, channel, data = reply
        try:
            self._listeners[channel](data)
        except msgspec.MsgspecError:
            log.warning("what was published in %s is no message of a corosrv, and is dropped", channel.decode())
        except Exception:
            log.exception("what another server published could not be taken, by a bug")
