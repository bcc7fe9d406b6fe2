"""Accepts clients at once and begins to serve them a few at a time, however many connect in the same instant.

Among those that wait to be served, whoever asks for health goes first, the others in order. A client's time-outs do not
count a pause of this process (`PatientSocket`). A client under TLS that another process serves has a `TlsRelay`.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import logging
import math
import os
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import gevent.socket
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import wait

from corosrv.base.waits import awake_clock
from corosrv.web.http.reply import Flood
from corosrv.web.http.worker_watch import certificate_fault

log = logging.getLogger("corosrv.http")

# Small enough that a turn in which thousands connect is short, large enough to see most of them in their first turn.
_LOOKS = 512
_URGENT = re.compile(rb"(?:GET|HEAD) [^ ?]*/health(?:-check)?[ ?]")
_LINE = 128  # bytes: more than an urgent request line has


class Arrival:
    """One accepted connection: the plain socket, which nobody has read from, and the client's address."""

    __slots__ = ("address", "is_taken", "socket")

    def __init__(self, socket: Any, address: Any) -> None:
        self.socket = socket
        self.address = address
        self.is_taken = False

    def peek(self) -> bytes | None:
        """Returns the beginning of what the client has sent; None before it has sent anything. Never waits."""
        try:
            return self.socket.recv(_LINE, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # type: ignore[no-any-return]
        except BlockingIOError:
            return None
        except OSError:  # it was reset: whoever serves it will see
            return b""


class Arrivals:
    """The queue of them. Never waits; belongs to the hub."""

    def __init__(self) -> None:
        self._in_order: deque[Arrival] = deque()
        self._silent: deque[Arrival] = deque()  # nothing was seen of these yet
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def add(self, arrival: Arrival) -> None:
        self._in_order.append(arrival)
        self._silent.append(arrival)
        self._n_waiting += 1

    def take(self, n: int) -> Iterator[Arrival]:
        """Takes those that ask for health, all that are seen now, and then the next `n` in order."""
        for _ in range(min(_LOOKS, len(self._silent))):
            arrival = self._silent.popleft()
            if not arrival.is_taken and self._is_urgent(arrival):
                yield self._mark_taken(arrival)
        while n and self._in_order:
            arrival = self._in_order.popleft()
            if not arrival.is_taken:
                n -= 1
                yield self._mark_taken(arrival)

    def _is_urgent(self, arrival: Arrival) -> bool:
        data = arrival.peek()
        if data is None:
            self._silent.append(arrival)
            return False
        return _URGENT.match(data) is not None

    def _mark_taken(self, arrival: Arrival) -> Arrival:
        arrival.is_taken = True
        self._n_waiting -= 1
        return arrival


_LATE = 0.25  # seconds by which a timer may fire late in a process that runs
_LOOK = 1.0  # seconds at least for a client after a pause: what it sent meanwhile may have to come in turns


class PatientSocket(gevent.socket.socket):  # type: ignore[misc]
    """gevent's socket, which looks once more where the process itself slept through the time-out.

    After a pause all timers are due before any descriptor was looked at, so gevent's own would give up clients whose
    bytes have been there all the time.
    """

    __slots__ = ()

    def _wait(self, watcher: Any, timeout_exc: BaseException | None = None) -> None:
        error = timeout_exc or TimeoutError("timed out")
        remaining = self.timeout
        end = 0.0 if remaining is None else awake_clock.now() + remaining
        while True:
            wake_time = time.monotonic() + (remaining or 0.0)
            try:
                return wait(watcher, remaining, error)  # type: ignore[no-any-return]
            except TimeoutError as raised:
                if raised is not error or time.monotonic() - wake_time < _LATE:
                    raise
                remaining = max(end - awake_clock.now(), _LOOK)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends everything. Raises TimeoutError when that takes longer than the socket's time-out."""
        unsent = memoryview(data).cast("B")
        end = math.inf if self.timeout is None else awake_clock.now() + self.timeout
        while unsent:
            unsent = unsent[self.send(unsent, flags) :]
            if unsent and awake_clock.now() > end:
                raise TimeoutError("timed out")


_COPIED = 65_536  # bytes at a time
_GO_ON = b"HTTP/1.1 100 "  # how what is said before an answer begins, so that the client sends its body


class TlsRelay:
    """Copies what a client under TLS and the process that serves it say: no other process can have TLS's state.

    `far` is the end of a pair of sockets that is to be passed to that process, as a client's plain connection.
    """

    def __init__(self, client: ssl.SSLSocket, patience: float) -> None:
        """`patience`: seconds in which the client has to take what it is sent."""
        self._client = client
        self._patience = patience
        self._near, self.far = gevent.socket.socketpair()
        self._is_answered = False  # the last request is, or its answer has begun
        self._is_hung_up = False
        self._has_ended_requests = False

    def run(self) -> None:
        """Copies until one of both has closed its end. Waits. Raises OSError: a TimeoutError for a client that takes
        nothing."""
        self.far.close()
        self._client.settimeout(None)
        requests = gevent.spawn(self._copy_requests)
        try:
            while data := self._near.recv(_COPIED):
                with gevent.Timeout(self._patience, TimeoutError):
                    self._client.sendall(data)
                self._is_answered = not data.startswith(_GO_ON)
                self._end_requests()
        finally:
            requests.kill()

    def _copy_requests(self) -> None:
        try:
            while data := self._client.recv(_COPIED):
                self._is_answered = False
                if not self._has_ended_requests:
                    self._near.sendall(data)
        except OSError:  # one of both has left: run() hears of it, too
            pass
        finally:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Closes the connection behind the answer that is under way. Never waits."""
        self._is_hung_up = True
        self._end_requests()

    def _end_requests(self) -> None:
        """Tells the other process, once, that no request follows: it closes its end when all are answered."""
        if self._is_hung_up and self._is_answered and not self._has_ended_requests:
            self._has_ended_requests = True
            with contextlib.suppress(OSError):
                self._near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends both directions. Twice is harmless."""
        self._end()
        self._near.close()
        self.far.close()


_SPEAKS_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 52\r\nConnection: close\r\n\r\n"
    b"this port speaks TLS: write https:// in the address\n"
)


class Certificates:
    """Loads a server's certificate anew when its files have changed. What is wrong then is told, and not taken."""

    def __init__(self, context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
        self._context = context
        self._files = [path for path in (certfile, keyfile) if path]
        self._seen = self._states()

    def _states(self) -> list[tuple[int, int, int]] | None:
        try:
            return [(status.st_mtime_ns, status.st_ino, status.st_size) for status in map(os.stat, self._files)]
        except OSError:  # it is being replaced
            return None

    def look(self) -> None:
        """Looks whether the files have changed; connections that are open keep what they have agreed on."""
        states = self._states()
        if states is None or states == self._seen:
            return
        self._seen = states
        if fault := certificate_fault(*self._files):
            log.error("the new certificate is not taken: %s", fault)
            return
        self._context.load_cert_chain(*self._files)
        log.info("new clients get the certificate that is now in %s", self._files[0])


_AT_ONCE = 8  # connections that are begun in one turn of the hub: a first request takes about a millisecond
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTOR_PAUSE = 0.1  # seconds


class Listener(StreamServer):  # type: ignore[misc]
    """gevent's server with a queue between accepting and serving, and a pause when no descriptor is left.

    gevent's own begins a hundred clients in each turn of the hub, so that whoever comes behind thousands, a health
    probe among them, waits until most of these are answered.
    """

    max_accept = 512  # in one turn: to accept costs a hundredth of what it takes to answer

    def __init__(
        self, listener: Any, handle: Callable[[Any, Any], None], pool: Pool, handshake_s: float = 0.0, **tls: Any
    ) -> None:
        """`handle`: serves a client and closes its socket. `pool`: how many are served at once.

        `handshake_s`: the seconds in which a client has to agree on TLS, where `tls` asks for it.
        """
        self._handshake_s = handshake_s
        self._unagreed = Flood(log, "%d clients did not agree on TLS: they speak plain HTTP, were too slow, or left")
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

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> None:
        """Agrees on TLS with a client, and serves it. Waits; one that takes too long is closed."""
        try:
            with gevent.Timeout(self._handshake_s or None, TimeoutError):
                if client_socket.recv(1, socket.MSG_PEEK).isalpha():
                    client_socket.recv(65_536)  # what is left unread would destroy the answer
                    client_socket.sendall(_SPEAKS_TLS)
                    raise ConnectionAbortedError
                client = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError:  # an SSLError, or a TimeoutError, among them
            self._unagreed.count()
            client_socket.close()
            return
        self.handle(client, address)

    def close(self) -> None:
        """Stops accepting; clients that were accepted are served. Calling it twice is harmless."""
        if self._next_turn is not None:
            self._next_turn.close()
            self._next_turn = None
        for arrival in self._arrivals.take(len(self._arrivals)):
            self._begin(arrival)
        super().close()
