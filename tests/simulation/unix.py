"""One machine of the simulation: its processes, which can be stopped and killed, and Unix sockets with real paths.

Files, their locks and their deletion are the system's own, in a folder of the run. A socket's path is a file whose
inode the listener is found by, so that whoever removes or replaces it cuts others off as on a real machine.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
from gevent import Greenlet

from tests.simulation.loop import READ, Owner
from tests.simulation.net import SimSocket
from tests.simulation.world import World

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class LocalProcess(Owner):
    """One process: its greenlets, sockets and descriptors of real files, which end with it."""

    def __init__(self, machine: Machine, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.greenlets: dict[Greenlet, None] = {}
        self.sockets: dict[UnixSocket, None] = {}
        self.fds: list[int] = []
        self._machine = machine

    def run(self, function: Callable[..., object], *arguments: object) -> Greenlet:
        """Runs a function in this process."""
        with self._machine.world.loop.acting_for(self):
            return gevent.spawn(function, *arguments)

    def adopt(self, greenlet: Greenlet) -> None:
        """Takes a greenlet that was spawned here; one of a dead process never runs."""
        if not self.is_alive:
            greenlet.kill(block=False)
            return
        self.greenlets[greenlet] = None
        greenlet.rawlink(lambda greenlet: self.greenlets.pop(greenlet, None))

    def forget(self, end: UnixSocket) -> None:
        """Takes note that a socket was closed."""
        self.sockets.pop(end, None)

    def stop(self) -> None:
        """Does nothing from now on, as after SIGSTOP."""
        if self.is_alive:
            self.is_stopped = True
            self._machine.world.loop.hold(self)

    def go_on(self) -> None:
        """Goes on, as after SIGCONT. Twice is harmless."""
        if self.is_alive:
            self.is_stopped = False
            self._machine.world.loop.release(self)

    def die(self, loses_end: bool = True) -> None:
        """Ends as by kill -9, with what it has not sent. Twice is harmless.

        `loses_end`: what is on its way is lost from some byte on, as if it had not been sent.
        """
        if not self.is_alive:
            return
        self.is_alive = False
        loop = self._machine.world.loop
        loop.drop(self)
        for end in list(self.sockets):
            if loses_end and end.is_connected:
                end.lose_end()
            end.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        with loop.acting_for(self):
            gevent.killall(list(self.greenlets), block=False)


class UnixSocket(SimSocket):
    """One end of a connection on the machine, or a listener."""

    def __init__(self, machine: Machine) -> None:
        net = machine.world.net
        # Half of all connections have everything at once, as the kernel does; in others a reader comes late to it.
        latency = net.random.choice((0.0, 0.0, 0.001, 0.02))
        super().__init__(net, latency or 1.0, ("unix", 0) if latency else None)
        self.backlog: deque[UnixSocket] | None = None  # of a listener
        self.process: LocalProcess | None = None
        self._machine = machine
        self._inode = -1
        self._is_connected = False
        self.belong_to(machine.current)

    def belong_to(self, process: LocalProcess | None) -> None:
        self.process = process
        if process is not None:
            process.sockets[self] = None

    @property
    def is_connected(self) -> bool:
        """Tells whether neither side has closed it."""
        return self._is_connected and not self.is_closed and not self.peer.is_closed

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Returns the credentials of the other end."""
        return _CREDENTIALS.pack(0, os.geteuid(), os.getegid())

    def connect(self, path: str) -> None:
        listener = self._machine.listeners.get(os.stat(path).st_ino)
        if listener is None or listener.backlog is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        with self._machine.world.loop.acting_for(Owner()):
            theirs = UnixSocket(self._machine)
        theirs.address, theirs._latency = self.address, self._latency
        self.peer, theirs.peer = theirs, self
        self._is_connected = theirs._is_connected = True
        listener.backlog.append(theirs)
        listener._changed()

    def bind(self, path: str) -> None:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise OSError(errno.EADDRINUSE, "Address already in use") from None
        self._inode = os.stat(path).st_ino

    def listen(self, n_waiting: int) -> None:
        self.backlog = deque()
        self._machine.listeners[self._inode] = self

    def events(self) -> int:
        return (READ if self.backlog else 0) if not self._is_connected else super().events()

    def _accept(self) -> tuple[int, str]:
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        accepted = self.backlog.popleft()
        accepted.belong_to(self._machine.current)
        return accepted.fileno(), ""

    def inherit(self, process: LocalProcess) -> None:
        """Gives a listener to a process that is started."""
        self._n_holders += 1
        process.sockets[self] = None

    def close(self) -> None:
        if self.process is not None:
            self.process.forget(self)
        if self._is_connected:
            super().close()
            return
        self._n_holders -= 1
        if self.is_closed or self._n_holders:
            return
        self.is_closed = True
        for waiting in self.backlog or ():
            waiting.reset()
        if self._machine.listeners.get(self._inode) is self:
            del self._machine.listeners[self._inode]
        self._net.loop.descriptors.pop(self._fd, None)
        self._net.sockets.pop(self, None)

    def cut(self) -> None:
        """Ends the connection in the midst of what is on its way."""
        for end in (self, self.peer):
            assert isinstance(end, UnixSocket)
            end.lose_end()
            end.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


class Machine:
    """Owns the processes of a run, the listeners and the folder."""

    def __init__(self, world: World, folder: str) -> None:
        self.world = world
        self.folder = folder
        self.listeners: dict[int, UnixSocket] = {}  # by the inode of their path
        self.processes: dict[int, LocalProcess] = {}  # that live, by their ids
        self._next_pid = 1 << 23  # no process of the system has it
        Greenlet.add_spawn_callback(self._adopt)

    @property
    def current(self) -> LocalProcess | None:
        """The process whose code runs now."""
        owner = self.world.loop.owner
        return owner if isinstance(owner, LocalProcess) else None

    def _adopt(self, greenlet: Greenlet) -> None:
        if (process := self.current) is not None:
            process.adopt(greenlet)

    def start(self, name: str, kind: type[LocalProcess] = LocalProcess) -> Any:
        """Starts a process, which does nothing yet."""
        self._next_pid += 1
        process = self.processes[self._next_pid] = kind(self, self._next_pid, name)
        return process

    def end(self, process: LocalProcess, loses_end: bool = True) -> None:
        """Ends a process; see LocalProcess.die."""
        process.die(loses_end)
        self.processes.pop(process.pid, None)


class SocketCalls:
    """Stands for the module `_socket`, for Unix sockets."""

    AF_UNIX, SOCK_STREAM, SOCK_CLOEXEC = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_CLOEXEC
    SOL_SOCKET, SO_PEERCRED, SHUT_RDWR = socket.SOL_SOCKET, socket.SO_PEERCRED, socket.SHUT_RDWR

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def socket(self, family: int = -1, kind: int = -1, protocol: int = 0, fileno: int | None = None) -> SimSocket:
        return UnixSocket(self._machine) if fileno is None else self._machine.world.net.held(fileno)


class SystemCalls:
    """Stands for the module `os`: the real one, but for ids of processes and signals."""

    def __init__(self, machine: Machine, kill: Callable[[int], None]) -> None:
        self._machine = machine
        self._kill = kill

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def getpid(self) -> int:
        process = self._machine.current
        return os.getpid() if process is None else process.pid

    def killpg(self, pid: int, number: int) -> None:
        """Kills a process of the simulation. Raises ProcessLookupError."""
        if pid not in self._machine.processes:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        self._kill(pid)
