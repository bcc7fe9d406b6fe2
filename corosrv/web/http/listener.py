"""Accepts clients at once and begins to serve them a few at a time, however many connect in the same instant."""

from __future__ import annotations

import _socket
import errno
import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.server import StreamServer

from corosrv.web.http.arrivals import Arrival, Arrivals
from corosrv.web.http.flood import Flood
from corosrv.web.http.patient_socket import PatientSocket

log = logging.getLogger("corosrv.http")

_AT_ONCE = 8  # connections that are begun in one turn of the hub: a first request takes about a millisecond
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTOR_PAUSE = 0.1  # seconds


class Listener(StreamServer):  # type: ignore[misc]
    """gevent's server with a queue between accepting and serving, and a pause when no descriptor is left.

    gevent's own begins a hundred clients in each turn of the hub, so that whoever comes behind thousands, a health
    probe among them, waits until most of these are answered.
    """

    max_accept = 512  # in one turn: to accept costs a hundredth of what it takes to answer

    def __init__(self, listener: Any, handle: Callable[[Any, Any], None], pool: Pool, **tls: Any) -> None:
        """`handle`: serves a client and closes its socket. `pool`: how many are served at once."""
        self._starved = Flood(log, "no file descriptor was left for a client, %d times")
        self._arrivals = Arrivals()
        self._n_begun = 0  # in this turn of the hub
        self._next_turn: Any = None
        super().__init__(listener, handle, spawn=pool, **tls)
        self.full = self._is_full

    def _is_full(self) -> bool:
        return bool(self.pool.free_count() <= len(self._arrivals))

    def do_read(self) -> Any:
        try:
            descriptor, address = self.socket._accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self._starved.count()
            self.stop_accepting()
            gevent.spawn_later(_NO_DESCRIPTOR_PAUSE, self._start_accepting_if_started)
            return None
        listening = self.socket
        return _socket.socket(listening.family, listening.type, listening.proto, descriptor), address

    def do_handle(self, accepted: Any, address: Any) -> None:
        """Begins to serve a client, or puts it into the queue where this turn has begun enough."""
        arrival = Arrival(accepted, address)
        if self._n_begun < _AT_ONCE and not self._arrivals:
            self._begin(arrival)
        else:
            self._arrivals.add(arrival)
        if self._next_turn is None:
            # Not a callback: the loop runs those before it looks at other sockets again.
            self._next_turn = self.loop.timer(1e-6)
            self._next_turn.start(self._on_turn)

    def _on_turn(self) -> None:
        self._next_turn.close()
        self._next_turn = None
        self._n_begun = 0
        for arrival in self._arrivals.take(_AT_ONCE):
            self._begin(arrival)
        if self._arrivals:
            self._next_turn = self.loop.timer(1e-6)
            self._next_turn.start(self._on_turn)

    def _begin(self, arrival: Arrival) -> None:
        self._n_begun += 1
        raw = arrival.socket
        client = PatientSocket(raw.family, raw.type, raw.proto, fileno=raw.detach())
        try:
            self._spawn(self._serve, client, arrival.address)
        except BaseException:
            self.do_close(client, arrival.address)
            raise

    def _serve(self, client: Any, address: Any) -> None:
        """Serves one client. Waits.

        gevent's own function does so through `*args`, whose call every open stream would keep on its stack.
        """
        try:
            self._handle(client, address)
        except BaseException:
            self.do_close(client, address)
            raise

    def close(self) -> None:
        """Accepts nobody any more; who was accepted is served. Calling it twice is harmless."""
        if self._next_turn is not None:
            self._next_turn.close()
            self._next_turn = None
        for arrival in self._arrivals.take(len(self._arrivals)):
            self._begin(arrival)
        super().close()
