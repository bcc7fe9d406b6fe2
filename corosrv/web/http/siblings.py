"""Passes connections between the worker processes of one server, so that each caller's state is in one of them.

Stored responses, answers under idempotency keys, streams that may be resumed, groups, and what an API key with limits
has left are kept in memory. A request that makes or needs some goes to the process that its caller's credentials
choose: the whole connection does, with what was read of it, over a Unix socket. No byte of the answer is copied. Other
requests stay where they arrived.
"""

from __future__ import annotations

import _socket  # the system's own sockets, whatever is patched
import array
import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.hub import get_hub
from gunicorn.http.message import Request

from corosrv.base.run_dir import path_in
from corosrv.web.http.connection import Overloaded
from corosrv.web.http.reply import Flood
from corosrv.web.keys import key_of

log = logging.getLogger("corosrv.http")

_NEEDS_STATE = re.compile(r"/(?:responses|groups|stream)(?:/|$)")
_STATE_FIELDS = frozenset(("IDEMPOTENCY-KEY", "X-CONVERSATION-ID", "X-GROUP-ID"))
_SUFFIX = ".front"
_MAX_PASSED = 160 << 10  # bytes that were read: a datagram holds some 200 KiB
_DATAGRAM = 256 << 10
_LOOK_AGAIN = 0.5  # seconds for which a look at who is there holds
_START = 10.0  # seconds in which all processes should have started
_PATIENCE = 2.0  # seconds in which another process must take what is passed to it
_PAUSE = 0.01
_READ = 1  # what a watcher of gevent watches for
_FD_BYTES = array.array("i").itemsize


class PassedConnection(msgspec.Struct, array_like=True):
    """Describes a connection on its way: the client's address, the listener's name, and what was read so far."""

    address: Any
    listener: Any
    data: bytes


class Siblings:
    """Knows the processes of one server. Belongs to the hub's thread of one of them."""

    def __init__(
        self, folder: str, n_processes: int, take: Callable[[_socket.socket, Any, Any, bytes], None], *, server: int = 0
    ) -> None:
        """`folder`: the run directory, which is there. `take`: serves a connection that another process has passed.

        `server`: the number of the server, which all of its processes have: that of their parent.
        """
        self._folder = folder
        self._n_processes = n_processes
        self._take = take
        self._prefix = f"{server or os.getppid()}-"
        self._path = path_in(folder, f"{self._prefix}{os.getpid()}{_SUFFIX}")
        self._began = time.monotonic()
        self._known: list[str] = []
        self._known_until = 0.0
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        self._watcher: Any = None
        self.has_limits: Callable[[bytes], bool] = lambda key: (
            False
        )  # of an API key, for which one process has to count
        self._unpassed = Flood(log, "%d requests could not be passed to the worker process that has their state")

    def start(self) -> None:
        """Takes connections from now on. Raises OSError."""
        Path(self._path).unlink(missing_ok=True)  # of an earlier process with this number
        self._socket.setblocking(False)
        self._socket.bind(self._path)
        self._watcher = get_hub().loop.io(self._socket.fileno(), _READ)
        self._watcher.start(self._receive)

    def close(self) -> None:
        """Takes no more; what was passed already is served. Twice is harmless."""
        if self._watcher is not None:
            self._receive()
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
            Path(self._path).unlink(missing_ok=True)
            self._socket.close()

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, ancillary, _, _ = self._socket.recvmsg(_DATAGRAM, _socket.CMSG_SPACE(_FD_BYTES))
                fds = array.array("i")
                for level, kind, content in ancillary:
                    if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                        fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
                try:
                    passed = msgspec.msgpack.decode(data, type=PassedConnection)
                    (fd,) = fds
                except (msgspec.MsgspecError, ValueError):
                    log.error("what another process has passed is no connection, and is dropped")
                    for fd in fds:
                        os.close(fd)
                    continue
                self._take(_socket.socket(fileno=fd), _tuple(passed.address), _tuple(passed.listener), passed.data)

    def owner_of(self, request: Request) -> str | None:
        """Returns the other process that a request belongs to; None for one that is served here. May wait at a start.

        Its head was read, and nothing of its body was used.
        """
        key = _key_of(request)
        needs_state = _NEEDS_STATE.search(request.path) or any(name in _STATE_FIELDS for name, _ in request.headers)
        return self._choose(key) if needs_state or self.has_limits(key) else None

    def _choose(self, credentials: bytes) -> str | None:
        """Chooses by the highest hash of process and caller: when one ends, the callers of all others stay."""
        owner = max(self._live(), key=lambda name: hashlib.blake2b(name.encode() + b"\0" + credentials).digest())
        return None if owner == self._path else owner

    def _live(self) -> list[str]:
        """Lists the processes by the paths of their sockets. Waits at the start, until all are there."""
        now = time.monotonic()
        if now < self._known_until:
            return self._known
        while True:
            found = [str(path) for path in Path(self._folder).glob(f"{self._prefix}*{_SUFFIX}")]
            if len(found) >= self._n_processes or time.monotonic() - self._began > _START:
                break
            gevent.sleep(0.05)
        self._known = found if self._path in found else [*found, self._path]
        self._known_until = time.monotonic() + _LOOK_AGAIN
        return self._known

    def pass_on(self, owner: str, request: Request, connection: _socket.socket, address: Any, listener: Any) -> bool:
        """Passes a connection whose next request has been read as far as its head; returns whether it has been taken.

        The caller then closes its copy, and sends nothing. Waits for a process that is busy. Raises Overloaded.
        """
        data = head_of(request) + request.unreader.buf.getvalue()
        if len(data) > _MAX_PASSED:
            return self._fail(request)
        message = msgspec.msgpack.encode(PassedConnection(address, listener, data))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                self._socket.sendmsg([message], rights, 0, owner)
                return True
            except BlockingIOError:
                gevent.sleep(_PAUSE)
            except OSError as error:
                log.info("worker process %s is gone: %s", Path(owner).stem, error)
                with contextlib.suppress(OSError):
                    Path(owner).unlink(missing_ok=True)
                self._known_until = 0.0
                following = self.owner_of(request)
                if following is None:
                    return False
                owner = following
        return self._fail(request)

    def _fail(self, request: Request) -> bool:
        """Counts a connection that cannot be passed, and lets it be served here: without its state, but not uncounted.

        Raises Overloaded for a key with limits.
        """
        self._unpassed.count()
        if self.has_limits(_key_of(request)):
            raise Overloaded
        return False


def _key_of(request: Request) -> bytes:
    """Returns the API key in a request's head; empty without one."""
    fields = dict(request.headers)
    return key_of(fields.get("AUTHORIZATION", ""), fields.get("X-API-KEY", "")) or b""


def head_of(request: Request) -> bytes:
    """Writes the head of a request as it was sent, but for the case of its fields' names."""
    lines = [f"{request.method} {request.uri} HTTP/{request.version[0]}.{request.version[1]}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
