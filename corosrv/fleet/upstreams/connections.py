"""Opens connections to one upstream when they are needed, keeps them for a while, and sends and receives on them."""

from __future__ import annotations

import _socket
import functools
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Container
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import gevent

from corosrv.base.outgoing import keep_alive
from corosrv.base.waits import Waiter, waiter
from corosrv.fleet.upstreams.failures import UpstreamDown, words_of

PIECE = 64 << 10  # bytes that are received at once
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class UpstreamConnection:
    """Owns an open socket, plain or TLS. Belongs to one greenlet at a time; close it in the thread that made it."""

    def __init__(self, socket: Any) -> None:
        """`socket`: a connected one, which nobody uses from now on."""
        self._socket = socket
        socket.settimeout(0.0)
        self._is_tls = is_tls = isinstance(socket, ssl.SSLSocket)  # which may hold what it has decrypted
        # The system's own: gevent's wait, and cost as much again.
        raw = getattr(socket, "_sock", socket)
        self._send: Callable[[bytes], int] = socket.send if is_tls else functools.partial(_socket.socket.send, raw)
        self._receive: Callable[[int], bytes]
        self._receive = socket.recv if is_tls else functools.partial(_socket.socket.recv, raw)
        self._waiter: Waiter | None = None
        self._number = self.fileno()
        self._ended: Container[int] | None = None  # descriptors; None where that is not known
        self.is_drained = False
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

        Raises OSError. `is_drained` says of what was returned whether it was all there is, and no end behind it:
        whatever comes later calls the `look` of `wait`.
        """
        try:
            data = self._receive(PIECE)
        except _NOT_NOW:
            return None
        self.is_drained = len(data) < PIECE and self._ended is not None and self._number not in self._ended
        return data

    def wait(self, timeout: float | None, look: Callable[[], bool]) -> None:
        """Calls `look` each time that something has come since the last call, in the hub, until it returns True.

        It has to receive until there is nothing: what it leaves does not call it again. Waits. Raises what `look`
        raises, and TimedOut if nothing comes for `timeout` seconds.
        """
        if self._waiter is None:
            self._waiter = waiter(self._number)
            self._ended = None if self._is_tls else self._waiter.ended_numbers
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


CONNECT_TIMEOUT = 5.0  # seconds, for the name, the connection and TLS together
MAX_IDLE = 3.0  # seconds; servers close what is idle for 5 s, and a request must not meet that


class UpstreamConnections:
    """Lends connections to one upstream. Belongs to the hub's thread; whoever takes one gives it back or closes it.

    Names are resolved for each new connection. No proxy is used, whatever the environment says, and the certificate of
    an https upstream is verified by the system's authorities.
    """

    def __init__(self, url: str, max_idle: int) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self.is_numeric = _is_address(self._host)
        self._port = parts.port or (443 if self._is_tls else 80)
        self.authority = parts.netloc.rpartition("@")[2]  # as requests name the upstream
        self.max_idle = max_idle
        self._idle: deque[tuple[UpstreamConnection, float]] = deque()  # the one used last is last
        self._is_closed = False

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    def take(self) -> UpstreamConnection:
        """Returns a connection that nobody uses. Waits for a new one; raises UpstreamDown."""
        self.close_idle()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_quiet:
                return connection
            connection.close()
        try:
            with gevent.Timeout(CONNECT_TIMEOUT, TimeoutError()):
                return UpstreamConnection(self._connect())
        except TimeoutError:
            raise UpstreamDown(f"no connection to the upstream within {CONNECT_TIMEOUT:g} s") from None
        except (OSError, ValueError) as error:  # a name that no resolver takes is a ValueError
            raise UpstreamDown(f"the upstream cannot be reached: {words_of(error)}") from None

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keeps a connection whose last answer was read to its end."""
        if self._is_closed or len(self._idle) >= self.max_idle:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))

    def close_idle(self, max_idle: float = MAX_IDLE) -> None:
        """Closes the connections that nobody has used for some seconds."""
        before = time.monotonic() - max_idle
        while self._idle and self._idle[0][1] <= before:
            self._idle.popleft()[0].close()

    def close(self) -> None:
        """Closes what is idle, and keeps nothing from now on. Twice is harmless."""
        self._is_closed = True
        self.close_idle(0.0)

    def _connect(self) -> socket.socket:
        address = (self._host, self._port)
        sock = _connected(address) if self.is_numeric else socket.create_connection(address, CONNECT_TIMEOUT)
        try:
            keep_alive(sock)
            return _tls_context().wrap_socket(sock, server_hostname=self._host) if self._is_tls else sock
        except BaseException:
            sock.close()
            raise


def _connected(address: tuple[str, int]) -> socket.socket:
    """Connects to a host that is an address, and not a name: gevent looks up both in threads."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        sock.settimeout(CONNECT_TIMEOUT)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cache
def _tls_context() -> ssl.SSLContext:
    """Returns what verifies certificates; reading the authorities takes tens of milliseconds."""
    return ssl.create_default_context()
