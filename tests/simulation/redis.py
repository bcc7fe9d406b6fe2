"""A real Redis under the simulation's clock: asked synchronously, so that no virtual time passes meanwhile.

The clock is a file that the simulation writes and that `clock.c` gives to the server in the system's stead: the ids of
entries, their idleness, what expires and what TIME says are all virtual. A kill and its file are the real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gevent
import redis
from gevent.event import Event

from corosrv.fleet.cluster import connection
from corosrv.fleet.cluster.connection import RedisClient, Word
from tests.simulation.loop import EPOCH
from tests.simulation.world import World

PROGRAM = "redis-server"
_SOURCE = Path(__file__).parent / "clock.c"
_SLEEP = time.sleep  # real seconds, until the server listens


def missing() -> str:
    """Returns what is not there for a world with Redis; an empty text if all is."""
    return ", ".join(program for program in (PROGRAM, "cc") if shutil.which(program) is None)


@functools.cache
def _clock_library() -> Path:
    """Compiles the clock, once for each of its versions."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"corosrv-simulation-{os.getuid()}-{version}.so"
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", unfinished, _SOURCE], check=True)
        unfinished.rename(library)
    return library


class SimRedis:
    """Owns the server of one run. `is_down` and a link that is cut are what its clients see of faults."""

    def __init__(self, world: World) -> None:
        self.is_down = False
        self.slowness = 0.001  # mean seconds of a way to it or back
        self.loss = 0.0  # the part of commands whose connections are given up before they arrive
        self.subscribers: dict[LinkConnection, None] = {}
        self._world = world
        self._folder = Path(tempfile.mkdtemp(prefix="simulated-redis-"))
        (self._folder / "clock").write_bytes(bytes(mmap.PAGESIZE))
        with open(self._folder / "clock", "r+b") as file:
            self._clock = mmap.mmap(file.fileno(), 8)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self.start()

    @property
    def _socket(self) -> str:
        return str(self._folder / "socket")

    def start(self) -> None:
        """Starts the server, with what its file has. Takes milliseconds, and no virtual time."""
        self._write_clock()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        options = {"port": "0", "unixsocket": self._socket, "dir": str(self._folder), "save": "", "appendonly": "yes",
                   "appendfsync": "no", "logfile": str(self._folder / "log"), "daemonize": "no"}  # fmt: skip
        self._process = subprocess.Popen(
            [PROGRAM, *(word for name, value in options.items() for word in (f"--{name}", value))],
            env=os.environ | {"LD_PRELOAD": str(_clock_library()), "SIMULATED_CLOCK": str(self._folder / "clock")},
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
            stdout=subprocess.DEVNULL,
        )
        self._connection = self.open()
        for _ in range(2000):
            with contextlib.suppress(redis.RedisError, OSError):
                self._connection.connect()
                self._connection.send_command("PING")
                self._connection.read_response()
                return
            self._connection.disconnect()
            _SLEEP(0.005)
        raise AssertionError(f"{PROGRAM} does not answer: {(self._folder / 'log').read_text()[-2000:]}")

    def open(self) -> Any:
        """Makes a connection of redis-py, which keeps real time."""
        return redis.UnixDomainSocketConnection(path=self._socket, protocol=2, socket_timeout=20.0)

    def kill(self, loses_all: bool) -> None:
        """Ends the server as kill -9 does. `loses_all`: its file with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._connection.disconnect()
        for subscriber in list(self.subscribers):
            subscriber.disconnect()
        if loses_all:
            shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def _write_clock(self) -> None:
        microseconds = int((EPOCH + self._world.loop.time) * 1e6)
        self._clock[:8] = microseconds.to_bytes(8, "little")

    def run(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs commands at the current virtual time; an error is a reply."""
        self._write_clock()
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        replies = [self._reply() for _ in commands]
        for subscriber in self.subscribers:
            subscriber.gather()
        return replies

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def close(self) -> None:
        """Ends the server and removes its files."""
        self.kill(loses_all=True)
        shutil.rmtree(self._folder, ignore_errors=True)


class Link:
    """The way of one front to Redis, which may be cut. Stands for the connection pool of redis-py."""

    def __init__(self, world: World, server: SimRedis) -> None:
        self.server = server
        self._world = world
        self._is_cut = False

    def cut(self, is_cut: bool) -> None:
        """Cuts the way, or mends it; who waits for an answer hears of it."""
        self._is_cut = is_cut
        for subscriber in self.server.subscribers:
            subscriber.news.set()

    def check(self) -> None:
        if self._is_cut or self.server.is_down:
            raise redis.ConnectionError("Connection refused")

    def travel(self) -> None:
        """Waits as long as a way takes. Raises redis.ConnectionError where nothing arrives."""
        gevent.sleep(self._world.random.expovariate(1 / self.server.slowness))
        self.check()

    def get_connection(self) -> LinkConnection:
        return LinkConnection(self)

    def deliver(self, commands: Sequence[Sequence[Word]]) -> None:
        """Waits as long as a way takes. Raises redis.ConnectionError where nothing arrives, or not yet."""
        if self._world.chance(self.server.loss):
            gevent.spawn_later(self._world.random.expovariate(3.0), self._deliver_late, commands)
            raise redis.ConnectionError("Connection reset by peer")
        self.travel()

    def _deliver_late(self, commands: Sequence[Sequence[Word]]) -> None:
        if not self.server.is_down:
            self._world.note("what a front has sent before arrives late")
            self.server.run(commands)

    def release(self, connection: LinkConnection) -> None:
        """Does nothing: connections cost nothing here."""

    def disconnect(self) -> None:
        """Does nothing: nothing is kept open."""


class LinkConnection:
    """Stands for a connection of redis-py: what is sent is run when its first reply is read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._commands: list[Sequence[Word]] = []
        self._replies: Iterator[Any] = iter(())
        self._subscription: Any = None  # a real connection
        self._messages: deque[Any] = deque()
        self.news = Event()  # a message, or a loss

    def connect(self) -> None:
        self._commands.clear()
        self._link.travel()

    def disconnect(self) -> None:
        self._commands.clear()
        self._link.server.subscribers.pop(self, None)
        if self._subscription is not None:
            self._subscription.disconnect()
            self._subscription = None
        self.news.set()

    def pack_commands(self, commands: Sequence[Sequence[Word]]) -> Sequence[Sequence[Word]]:
        return commands

    def send_packed_command(self, commands: Sequence[Sequence[Word]]) -> None:
        self._commands = list(commands)

    def send_command(self, *words: Word) -> None:
        if words[0] == "SUBSCRIBE":
            self._link.travel()
            self._subscription = self._link.server.open()
            self._subscription.send_command(*words)
            self._messages.extend(self._subscription.read_response() for _ in words[1:])
            self._link.server.subscribers[self] = None
        else:
            self._commands = [words]

    def gather(self) -> None:
        """Takes what was published, all of which has come before the answer to a ping."""
        self._subscription.send_command("PING")
        while (message := self._subscription.read_response())[0] != b"pong":
            self._messages.append(message)
            self.news.set()

    def can_read(self, timeout: float) -> bool:
        """Waits for a message. Raises redis.ConnectionError once the connection is lost."""
        with gevent.Timeout(timeout, False):
            while not self._messages and self._is_subscribed():
                self.news.clear()
                self.news.wait()
        return self._is_subscribed() and bool(self._messages)

    def _is_subscribed(self) -> bool:
        self._link.check()
        if self._subscription is None:
            raise redis.ConnectionError("Connection closed by server.")
        return True

    def read_response(self) -> Any:
        if self._messages:
            return self._messages.popleft()
        if self._commands:
            commands, self._commands = self._commands, []
            self._link.deliver(commands)
            replies = self._link.server.run(commands)
            self._link.travel()  # what has run may have run for nobody
            self._replies = iter(replies)
        reply = next(self._replies)
        if isinstance(reply, Exception):
            raise reply
        return reply


class SimRedisClient(RedisClient):
    """The product's client, over a link of the simulation."""

    def __init__(self, link: Link) -> None:
        self._link = link
        setattr(connection, "is_cooperative", lambda: True)  # noqa: B010 - its waits are gevent's here
        super().__init__("redis://simulated:1/0")
        self._pool = link

    def make_connection(self, longest: float) -> Any:
        return LinkConnection(self._link)
