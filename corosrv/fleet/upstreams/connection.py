"""Sends and receives on one connection to an upstream."""

from __future__ import annotations

import _socket
import functools
import ssl
from collections.abc import Callable
from typing import Any

from corosrv.base.waits import Waiter, waiter

PIECE = 64 << 10  # bytes that are received at once
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class UpstreamConnection:
    """Owns an open socket, plain or TLS. Belongs to one greenlet at a time; close it in the thread that made it."""

    def __init__(self, socket: Any) -> None:
        """`socket`: a connected one, which nobody uses from now on."""
        self._socket = socket
        socket.settimeout(0.0)
        is_tls = isinstance(socket, ssl.SSLSocket)
        # The system's own: gevent's wait, and cost as much again.
        raw = getattr(socket, "_sock", socket)
        self._send: Callable[[bytes], int] = socket.send if is_tls else functools.partial(_socket.socket.send, raw)
        self._receive: Callable[[int], bytes]
        self._receive = socket.recv if is_tls else functools.partial(_socket.socket.recv, raw)
        self._waiter: Waiter | None = None
        self.is_closed = False

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def send(self, data: bytes, timeout: float) -> None:
        """Sends everything. Waits for an upstream that does not read; raises OSError."""
        try:
            n_bytes = self._send(data)
        except _NOT_NOW:
            n_bytes = 0
        if n_bytes == len(data):
            return
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(memoryview(data)[n_bytes:])
        finally:
            self._socket.settimeout(0.0)

    def receive(self) -> bytes | None:
        """Returns what has come, nothing at the end of the connection; None if there is nothing now. Never waits.

        Raises OSError.
        """
        try:
            return self._receive(PIECE)
        except _NOT_NOW:
            return None

    def wait(self, timeout: float | None, look: Callable[[], bool]) -> None:
        """Calls `look` each time that something has come since the last call, in the hub, until it returns True.

        It has to receive until there is nothing: what it leaves does not call it again. Waits. Raises what `look`
        raises, and TimedOut if nothing comes for `timeout` seconds.
        """
        if self._waiter is None:
            self._waiter = waiter(self.fileno())
        self._waiter.wait(timeout, look)

    @property
    def is_quiet(self) -> bool:
        """Tells whether an idle connection is open still; one that has something to read was closed, or is garbage."""
        try:
            return self.receive() is None
        except OSError:
            return False

    def close(self) -> None:
        """Closes the socket, which ends what it was used for. Twice is harmless."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._waiter is not None:
            self._waiter.close()  # before the descriptor, whose number may be somebody else's at once
        self._socket.close()
