"""Lets fronts and an engine's process find and greet each other: a socket in the run directory, a lock beside it.

Whoever holds the lock starts the process, and the process inherits it: there are never two of one model. The kernel
gives the lock back when the process has ended, however it did.
"""

from __future__ import annotations

import _socket  # the system's own sockets, whatever is patched
import contextlib
import fcntl
import hashlib
import logging
import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gevent
import msgspec

import corosrv
from corosrv.base import json_log
from corosrv.base.errors import ChannelClosed, ModelFailed, WireError
from corosrv.base.run_dir import path_in
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings, SamplingSettings
from corosrv.models.engine.binding import FINGERPRINT
from corosrv.models.engine.process import messages
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.worker.parent.process import Process

log = logging.getLogger("corosrv.engine")

MODULE = "corosrv.models.engine.process"  # that the process runs
PATIENCE = 60.0  # seconds in which a process that has the lock must listen and greet, or end
LOCK = ".lock"  # how the names of engines' locks end
_PAUSE = 0.05  # seconds between two tries
_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


def digest_of(settings: ModelSettings) -> str:
    """Hashes all that makes an engine what it is: settings, the model's file, this code and its libllama.

    Not what requests get that do not say it: that is the front's own.
    """
    digest = hashlib.blake2b(digest_size=12)
    parts = [
        msgspec.msgpack.encode(replace(settings, **vars(SamplingSettings()))),
        FINGERPRINT.encode(),
        corosrv.__version__.encode(),
        str(messages.PROTOCOL).encode(),
    ]
    for path in (settings.model, *(path for path, _ in settings.adapters)):
        if not settings.is_synthetic and os.path.exists(path):
            status = os.stat(path)
            identity = (os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)
            parts.append(msgspec.msgpack.encode(identity))
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


class EngineConnector:
    """Connects a front to the process of one engine. Belongs to the thread of one hub."""

    def __init__(
        self, settings: ModelSettings, folder: str, take_reserved: Callable[[str], int | None] = lambda digest: None
    ) -> None:
        """`folder`: the run directory, which is there. `take_reserved`: returns the lock of the engine of a digest,
        open and taken, if this front has it already. Raises SettingsError where its path is too long.
        """
        self._take_reserved = take_reserved
        self._settings = settings
        self._folder = folder
        self.digest = digest_of(settings)
        self._path = socket_path(folder, self.digest)
        self._lock_path = lock_path(folder, self.digest)
        self._started: Process | None = None  # the one that this front started last, to be reaped

    def connect(self) -> _socket.socket:
        """Returns a connection to the engine's process, which is started if nobody listens. Waits; raises ModelFailed.

        The other end belongs to the same user.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            if (connected := self._try_connect()) is not None:
                return connected
            if not self._try_start() and time.monotonic() > deadline:
                raise ModelFailed(
                    f"the engine's process holds {self._lock_path}, but does not listen: end it, and try again"
                )
            gevent.sleep(_PAUSE)

    def fault_of(self, pid: int) -> str:
        """Returns where the process of this id has written how it crashed; empty where it was killed, or has ended."""
        path = fault_path(self._folder, self.digest, pid)
        with contextlib.suppress(OSError):
            if os.path.getsize(path):
                return path
        return ""

    def _remove_empty_faults(self) -> None:
        """Removes the files of processes that ended without a word."""
        for path in Path(self._folder).glob(f"{self.digest}-*.fault"):
            if not path.stat().st_size:
                path.unlink()

    def _try_connect(self) -> _socket.socket | None:
        return connect_to(self._path)

    def kill_silent(self) -> None:
        """Kills the process that has the lock: one that listens, and does not greet. Not one of another container."""
        if (lock := self._try_lock()) is not None:  # it has ended meanwhile
            os.close(lock)
            return
        with contextlib.suppress(OSError, ValueError):
            pid, namespace = map(int, Path(self._lock_path).read_text().split())
            if namespace == _pid_namespace():
                log.error(
                    "model %s: its engine (process %d) does not greet, and is ended", self._settings.names[0], pid
                )
                kill_session(pid)

    def _try_lock(self) -> int | None:
        """Returns the open file of the lock, which is taken with it; None where another process has the lock."""
        reserved = self._take_reserved(self.digest)
        return take_lock(self._lock_path) if reserved is None else reserved

    def _try_start(self) -> bool:
        """Starts the engine's process; returns whether it did: not while another one has the lock."""
        if (lock := self._try_lock()) is None:
            return False
        try:
            os.ftruncate(lock, 0)
            self._start(lock)
        finally:
            os.close(lock)
        return True

    def _start(self, lock: int) -> None:
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        settings = os.memfd_create("corosrv-settings", os.MFD_CLOEXEC)
        try:
            # Of processes that have ended, for their lock is this front's now.
            Path(self._path).unlink(missing_ok=True)
            self._remove_empty_faults()
            listener.bind(self._path)
            listener.listen(_BACKLOG)
            os.write(settings, msgspec.msgpack.encode(self._settings))
            options = {"socket": listener.fileno(), "lock": lock, "settings": settings}
            words = [word for name, fd in options.items() for word in (f"--{name}", str(fd))]
            words += _log_options()
            self._started = Process(
                [sys.executable, "-m", MODULE, "--digest", self.digest, "--folder", self._folder, *words],
                inherited=options.values(),
            )
            os.pwrite(lock, f"{self._started.pid} {_pid_namespace()}\n".encode(), 0)
            log.info("model %s: its engine is process %d", self._settings.names[0], self._started.pid)
        except OSError as error:
            raise ModelFailed(f"the engine's process cannot be started: {error}") from error
        finally:
            listener.close()
            os.close(settings)


def connect_to(path: str) -> _socket.socket | None:
    """Returns a connection to the engine's process that listens there; None where nobody does. Raises ModelFailed."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise ModelFailed(f"the engine's process cannot be reached at {path}: {error.strerror}") from None
    if (user := peer_of(connection)) != os.geteuid():
        connection.close()
        raise ModelFailed(f"{path} belongs to a process of another user ({user}): remove it")
    return connection


def take_lock(path: str) -> int | None:
    """Returns the open file of a lock, which is taken with it; None where another process has the lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def lock_path(folder: str, digest: str) -> str:
    """Returns the path of the lock that the engine of a digest has as long as it lives."""
    return str(Path(folder) / f"{digest}{LOCK}")


def socket_path(folder: str, digest: str) -> str:
    """Returns the path of the socket on which it listens. Raises SettingsError where it is too long."""
    return path_in(folder, f"{digest}.engine")


def _log_options() -> list[str]:
    """Returns the options of a process that logs as this one does."""
    logger = logging.getLogger("corosrv")
    level = ["--log-level", str(logger.getEffectiveLevel())]
    return [*level, "--log-json"] if json_log.is_on(logger) else level


def kill_session(pid: int) -> None:
    try:
        os.killpg(pid, 9)
    except (ProcessLookupError, PermissionError) as error:
        log.error("process %d could not be ended: %s", pid, error)


def _pid_namespace() -> int:
    """Returns a number of those processes among which a process id means the same."""
    return os.stat("/proc/self/ns/pid").st_ino


def fault_path(folder: str, digest: str, pid: int) -> str:
    """Returns the path of the file in which a process writes how it crashes."""
    return str(Path(folder) / f"{digest}-{pid}.fault")


def peer_of(connection: _socket.socket) -> int:
    """Returns the user id of the process at the other end."""
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


class EngineLink:
    """One connection to an engine's process that has greeted, until either side ends it."""

    def __init__(self, channel: GeventChannel[messages.FromFront, messages.ToFront], pid: int) -> None:
        self._channel = channel
        self.pid = pid
        self._n_silent = 0  # looks at which nothing had come since the one before
        self._n_still = 0  # looks at which something ran and no step had been made
        self._n_steps = -1

    def send(self, message: messages.FromFront) -> None:
        """Sends a message, unless the connection has ended: whoever receives from it notices that."""
        with contextlib.suppress(ChannelClosed):
            self._channel.send(message)

    def receive(self) -> messages.ToFront | None:
        """Returns the next message, for which it waits; None at the end. Raises WireError."""
        message = self._channel.receive()
        self._n_silent = 0
        return message

    def count_look(self, stats: DecodeStats | None) -> int:
        """Counts one more look at the process, whose last counters are given; None while it loads its model.

        Returns the number of looks in a row at which it had said nothing, or had made no step while something ran.
        """
        self._n_silent += 1
        makes_steps = stats is None or not stats.running - stats.paused > 0 or stats.steps != self._n_steps
        self._n_still = 0 if makes_steps else self._n_still + 1
        self._n_steps = -1 if stats is None else stats.steps
        return max(self._n_silent, self._n_still)

    def kill(self) -> None:
        """Kills the process, with all of its session, and closes the connection."""
        kill_session(self.pid)
        self.close()

    def close(self) -> None:
        self._channel.close()


def greet(connector: EngineConnector) -> EngineLink | None:
    """Connects to the engine's process, which is started if need be, and waits for its greeting.

    Returns None where it ends before it greets, as one does that was about to end, or is killed because it does not.
    Raises ModelFailed if it refuses this front.
    """
    channel: GeventChannel[messages.FromFront, messages.ToFront] = GeventChannel(
        connector.connect(), messages.front_codec(), messages.MAX_FRAME
    )
    welcome = None
    try:
        channel.send(messages.FrontHello(messages.PROTOCOL, connector.digest))
        with gevent.Timeout(PATIENCE):
            welcome = channel.receive()
    except WireError:
        pass
    except gevent.Timeout:
        connector.kill_silent()
    finally:
        if not isinstance(welcome, messages.EngineHello):
            channel.close()
    if isinstance(welcome, messages.EngineRefusal):
        raise ModelFailed(f"the engine cannot be used: {welcome.reason}")
    return EngineLink(channel, welcome.pid) if isinstance(welcome, messages.EngineHello) else None
