"""Sockets of the simulation: bytes come late, in any pieces, or not at all; machines refuse, vanish and come back.

`SimSocket` has what the product uses of a socket, and `SimEpoll` what it uses of epoll: connections, waiters and
channels run on them as they are.
"""

from __future__ import annotations

import array
import errno
import random
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from tests.simulation.loop import READ, WRITE, SimLoop

WINDOW = 64 << 10  # bytes that may be on their way in one direction
KEEPALIVE = 30.0  # seconds after which the system ends a connection to a machine that has vanished
_FDS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)

Address = tuple[str, int]


@dataclass(slots=True)
class _Piece:
    """Holds bytes that were sent together, and the descriptors beside them."""

    data: bytes
    fds: Sequence[int] = ()


@dataclass(eq=False)
class Network:
    """Owns all machines and connections. `latency`: mean seconds of a piece's way."""

    loop: SimLoop
    random: random.Random
    latency: float = 0.002
    listeners: dict[Address, Callable[[SimSocket], object]] = field(default_factory=dict)
    vanished: set[Address] = field(default_factory=set)
    sockets: dict[SimSocket, None] = field(default_factory=dict)  # that are open

    def listen(self, address: Address, accept: Callable[[SimSocket], object]) -> None:
        """Calls `accept` with the other end of each new connection."""
        self.listeners[address] = accept

    def connect(self, address: Address) -> SimSocket:
        """Returns this side's end of a new connection. Waits. Raises OSError."""
        if address in self.vanished:
            Event().wait()  # whoever connects has a time-out
        gevent.sleep(self.delay())
        accept = self.listeners.get(address)
        if accept is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        ours, theirs = self.pair(self.latency, address)
        accept(theirs)
        return ours

    def pair(self, latency: float, address: Address | None = None) -> tuple[SimSocket, SimSocket]:
        """Makes two ends of a connection; `address`: of the machine at the second end."""
        ours, theirs = SimSocket(self, latency, address), SimSocket(self, latency, address)
        ours.peer, theirs.peer = theirs, ours
        return ours, theirs

    def socketpair(self) -> tuple[SimSocket, SimSocket]:
        """Makes a pair of Unix sockets."""
        return self.pair(0.0)

    def held(self, fd: int) -> SimSocket:
        """Returns the socket of a descriptor, which whoever has received it with a message holds as well."""
        sock = self.loop.descriptors[fd]
        assert isinstance(sock, SimSocket)
        return sock

    def delay(self) -> float:
        return self.random.expovariate(1 / self.latency)

    def vanish(self, address: Address) -> None:
        """Takes a machine away: nothing that is sent there or from there arrives, and nobody is told."""
        self.vanished.add(address)
        for sock in [sock for sock in self.sockets if sock.address == address]:
            self.loop.after(KEEPALIVE, sock.fail, TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def come_back(self, address: Address) -> None:
        """Brings a machine back, which knows none of its former connections."""
        self.vanished.discard(address)
        for sock in [sock for sock in self.sockets if sock.address == address]:
            sock._be_reset()

    def n_open(self, address: Address | None = None) -> int:
        """Counts the open ends of connections, or of those to one machine."""
        return sum(address in (None, sock.address) for sock in self.sockets)


class SimSocket:
    """One end of a connection, which never blocks; `read` and `write` wait, for the simulation's own side."""

    def __init__(self, net: Network, latency: float, address: Address | None) -> None:
        self.address = address
        self.peer: SimSocket
        self.is_closed = False
        self._n_holders = 1  # those who have it open: a descriptor that travels is one more
        self._net = net
        self._latency = latency
        self._inbox: deque[_Piece] = deque()
        self._n_unread = 0  # bytes of the inbox
        self._n_travelling = 0  # bytes that this end has sent and the other has not got
        self._way: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()  # what this end has sent
        self._last_arrival = 0.0  # of these: nothing overtakes
        self._has_hung_up = False  # this end sends no more
        self._is_over = False  # the other end sends no more, and all of it has come
        self._error: OSError | None = None
        self._edges: SimEpoll | None = None
        self._timeout: float | None = 0.0
        self._fd = net.loop.open(self)
        net.sockets[self] = None

    # What a watcher asks.

    def fileno(self) -> int:
        return -1 if self.is_closed else self._fd

    def events(self) -> int:
        can_read = bool(self._inbox) or self._is_over or self._error is not None
        can_write = self._room() > 0 or self._error is not None or self._has_hung_up
        return (READ if can_read else 0) | (WRITE if can_write else 0)

    def edge(self) -> int:
        """Returns what an epoll set tells of a socket that may be read."""
        return select.EPOLLIN | (select.EPOLLRDHUP if self._is_over or self._error is not None else 0)

    def _room(self) -> int:
        """Returns how many bytes may be sent now: what the other end has not read counts as on its way."""
        return WINDOW - self._n_travelling - (0 if self.peer.is_closed else self.peer._n_unread)

    def _changed(self, is_edge: bool = False) -> None:
        if self.is_closed:
            return
        if is_edge and self._edges is not None:
            self._edges.note_edge(self)
        self._net.loop.touch(self._fd)

    # What the product calls.

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0.0

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Does nothing: the network has its own delays."""

    def send(self, data: Any, flags: int = 0) -> int:
        return self._send(data, ())

    def sendmsg(self, buffers: Sequence[Any], ancillary: Sequence[tuple[int, int, Any]] = (), flags: int = 0) -> int:
        fds = [fd for level, kind, numbers in ancillary if (level, kind) == _FDS for fd in numbers]
        return self._send(b"".join(bytes(buffer) for buffer in buffers), fds)

    def sendall(self, data: Any) -> None:
        """Sends everything, and waits for room. Raises TimeoutError after the time-out."""
        rest = memoryview(data)
        with gevent.Timeout(self._timeout or None, TimeoutError("timed out")):
            while rest:
                try:
                    rest = rest[self.send(rest) :]
                except BlockingIOError:
                    self._wait(WRITE)

    def _send(self, data: Any, fds: Sequence[int]) -> int:
        self._check()
        # Over a network, what is sent to a closed end is answered by a reset, later.
        if self._has_hung_up or (self.address is None and self.peer.is_closed):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if (room := self._room()) <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        taken = bytes(data[:room])
        self._n_travelling += len(taken)
        for fd in fds:
            self._net.held(fd)._n_holders += 1
        self._travel(self.peer._arrive, _Piece(taken, fds))
        return len(taken)

    def _travel(self, arrive: Callable[..., object], *what: object) -> None:
        if self.address is None:  # a Unix socket: what is sent is there
            arrive(*what)
            return
        loop, seconds = self._net.loop, self._net.random.expovariate(1 / self._latency)
        self._last_arrival = max(self._last_arrival, loop.time + seconds)
        self._way.append((arrive, what))
        loop.after(self._last_arrival - loop.time, self._arrive_next)

    def _arrive_next(self) -> None:
        arrive, what = self._way.popleft()
        arrive(*what)

    def recv(self, n_bytes: int, flags: int = 0) -> bytes:
        return self._receive(n_bytes)[0]

    def recvmsg(self, n_bytes: int, room: int = 0, flags: int = 0) -> tuple[bytes, list[Any], int, None]:
        data, fds = self._receive(n_bytes)
        return data, [(*_FDS, array.array("i", fds).tobytes())] if fds else [], 0, None

    def _receive(self, n_bytes: int) -> tuple[bytes, Sequence[int]]:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if not self._inbox:
            if self._error is not None and not self._is_over:
                self._is_over = True
                raise self._error
            if self._is_over:
                return b"", ()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        # What comes in between two calls of the kernel is a piece of its own: any cut is one that may happen.
        random = self._net.random
        n_wanted = min(n_bytes, random.choice((1, 7, 64, 1000))) if random.random() < 0.2 else n_bytes
        pieces: list[bytes] = []
        fds: Sequence[int] = ()
        while self._inbox and n_wanted > 0 and not fds and not (pieces and self._inbox[0].fds):
            piece = self._inbox[0]
            part, piece.data = piece.data[:n_wanted], piece.data[n_wanted:]
            fds, piece.fds = piece.fds, ()
            pieces.append(part)
            n_wanted -= len(part)
            if not piece.data:
                self._inbox.popleft()
        data = b"".join(pieces)
        self._n_unread -= len(data)
        if self._inbox and len(data) < n_bytes:
            self._changed(is_edge=True)
        self.peer._changed()
        return data, fds

    def _check(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._error is not None:
            raise self._error

    def shutdown(self, how: int) -> None:
        self._check()
        self._hang_up()
        if how == socket.SHUT_RDWR:
            self._is_over = True
            self._changed(is_edge=True)

    def _hang_up(self) -> None:
        if not self._has_hung_up:
            self._has_hung_up = True
            self._travel(self.peer._end)

    def close(self) -> None:
        """Closes this end; the other one hears of it: by a reset if this one has not read everything."""
        if self.is_closed:
            return
        self._n_holders -= 1
        if self._n_holders:
            return
        for piece in self._inbox:
            for fd in piece.fds:
                self._net.held(fd).close()
        if self._n_unread and self._error is None:
            self._has_hung_up = True
            self._travel(self.peer._be_reset)
        else:
            self._hang_up()
        self.is_closed = True
        self._inbox.clear()
        self._n_unread = 0
        self._net.loop.descriptors.pop(self._fd, None)
        self._net.sockets.pop(self, None)
        self.peer._changed()

    # What comes from the other end.

    @property
    def _is_cut_off(self) -> bool:
        return self.address in self._net.vanished

    def _arrive(self, piece: _Piece) -> None:
        if self._is_cut_off:
            return
        self.peer._n_travelling -= len(piece.data)
        if self.is_closed:
            self._travel(self.peer._be_reset)
        elif self._error is None:
            self._inbox.append(piece)
            self._n_unread += len(piece.data)
            self._changed(is_edge=True)

    def _end(self) -> None:
        if not self._is_cut_off and not self.is_closed:
            self._is_over = True
            self._changed(is_edge=True)

    def _be_reset(self) -> None:
        if not self._is_cut_off:
            self.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def fail(self, error: OSError) -> None:
        """Ends this side with an error of the system's. Twice is harmless."""
        if not self.is_closed and self._error is None:
            self._error = error
            self._changed(is_edge=True)

    def reset(self) -> None:
        """Ends the connection from this side, with a reset for the other. Twice is harmless."""
        if not self.is_closed:
            self._n_unread = self._n_unread or 1
            self.close()

    # For the simulation's own side.

    def read(self) -> bytes:
        """Returns what has come, nothing at the end. Waits. Raises OSError."""
        while True:
            try:
                return self.recv(WINDOW)
            except BlockingIOError:
                self._wait(READ)

    def write(self, data: bytes) -> None:
        """Sends everything, in any pieces. Waits for room. Raises OSError."""
        random = self._net.random
        while data:
            n_bytes = random.choice((1, 3, 17, 200, WINDOW)) if random.random() < 0.2 else WINDOW
            piece, data = data[:n_bytes], data[n_bytes:]
            self.sendall(piece)

    def lose_end(self) -> None:
        """Loses what is on its way from here, behind any byte of it."""
        n_left = self._net.random.randint(0, self._n_travelling)
        for number, (_, what) in enumerate(self._way):
            piece = what[0] if what else None
            if isinstance(piece, _Piece):
                piece.data = piece.data[:n_left]
                n_left -= len(piece.data)
                if not piece.data:
                    self._way[number] = (lambda _: None, what)

    def _wait(self, events: int) -> None:
        watcher = self._net.loop.io(self._fd, events)
        try:
            gevent.get_hub().wait(watcher)
        finally:
            watcher.close()


class SimEpoll:
    """Stands for an epoll set, of which the product uses edges alone."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._members: dict[int, SimSocket] = {}
        self._news: dict[int, None] = {}
        self._fd = loop.open(self)

    def fileno(self) -> int:
        return self._fd

    def events(self) -> int:
        return READ if self._news else 0

    def register(self, fd: int, events: int) -> None:
        sock = self._loop.descriptors[fd]
        assert isinstance(sock, SimSocket)
        self._members[fd] = sock
        sock._edges = self
        if sock.events() & READ:
            self.note_edge(sock)

    def unregister(self, fd: int) -> None:
        self._members.pop(fd)._edges = None
        self._news.pop(fd, None)

    def note_edge(self, sock: SimSocket) -> None:
        """Records that something has come for a member."""
        self._news[sock.fileno()] = None
        self._loop.touch(self._fd)

    def poll(self, timeout: float, n_events: int) -> list[tuple[int, int]]:
        fds = list(self._news)[:n_events]
        for fd in fds:
            del self._news[fd]
        return [(fd, self._members[fd].edge()) for fd in fds if self._members[fd].events() & READ]

    def close(self) -> None:
        self._loop.descriptors.pop(self._fd, None)


class SocketModule:
    """Stands for the module `_socket` in the parts of the product that use it."""

    SHUT_RDWR = socket.SHUT_RDWR
    socket = SimSocket

    def __init__(self, net: Network) -> None:
        self.socketpair = net.socketpair
