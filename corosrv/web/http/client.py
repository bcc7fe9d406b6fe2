"""Notices at once that a client went away, without writing to it."""

from __future__ import annotations

import _socket
import socket
import ssl
from collections.abc import Callable
from typing import Any

from corosrv.base.waits import own_hub

_ESTABLISHED = 1  # tcp_info.tcpi_state in linux/tcp.h
_INTERVAL = 1.0  # seconds between two looks at a connection that cannot be watched


class ClientWatch:
    """Calls `on_gone` from the hub, once, when the client closes its end. Close it before the socket is used again.

    Needs the server's socket and a hub: gunicorn's gevent worker gives both. Elsewhere nothing is watched, and a
    client's leaving shows at the next write. Under TLS the end cannot be told from other records: the connection's
    state is looked at once a second.
    """

    __slots__ = ("_hub", "_on_gone", "_socket", "_watcher", "is_gone")

    def __init__(self, environ: dict[str, Any], on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self.is_gone = False
        self._watcher: Any = None
        self._socket: Any = environ.get("gunicorn.socket")
        self._hub: Any = own_hub()
        if self._hub is None or self._socket is None:
            return
        if isinstance(self._socket, ssl.SSLSocket):
            self._look_at_times()
            return
        self._watcher = self._hub.loop.io(self._socket.fileno(), 1)
        self._watcher.start(self._on_readable)

    def _on_readable(self) -> None:
        try:
            # The plain method: gevent's own would wait, and the hub must not.
            peeked = _socket.socket.recv(getattr(self._socket, "_sock", self._socket), 1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            peeked = b""
        if peeked:
            self._watch_pipelined()
        else:
            self._gone()

    def _watch_pipelined(self) -> None:
        """Looks at times: the client's next request is waiting and hides the end of its stream."""
        self.close()
        self._look_at_times()

    def _look_at_times(self) -> None:
        self._watcher = self._hub.loop.timer(_INTERVAL, _INTERVAL)
        self._watcher.start(self._on_timer)

    def _on_timer(self) -> None:
        try:
            state = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            state = 0
        if state != _ESTABLISHED:
            self._gone()

    def _gone(self) -> None:
        self.close()
        self.is_gone = True
        self._on_gone()

    def close(self) -> None:
        """Stops watching. Twice is harmless."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()
