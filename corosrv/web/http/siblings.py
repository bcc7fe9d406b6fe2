"""Passes connections between the worker processes of one server, so that each caller's state is in one of them.

Stored responses, conversations, answers under idempotency keys, streams that may be resumed, groups, and what an API
key with limits has left are kept in memory. A request that makes or needs some goes to the process that its caller's
credentials choose: the whole connection does, with what was read of it, over a Unix socket. No byte of the answer is
copied. Other requests stay where they arrived.

What all of them have to hear or to tell, as counters, is asked of each: it is passed one end of a pair of sockets, as
the connection of a client that sends the same request.
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
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import flask
import gevent
import msgspec
from gevent import socket as gevent_socket
from gevent.hub import get_hub
from gunicorn.http.message import Request

from corosrv.base.run_dir import path_in
from corosrv.web.http.connection import Overloaded
from corosrv.web.http.reply import Flood
from corosrv.web.keys import key_of

log = logging.getLogger("corosrv.http")

_NEEDS_STATE = re.compile(r"/(?:responses|conversations|groups|stream)(?:/|$)")
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
_ASKED = "X-Corosrv-Worker"  # the field of a request that one worker process repeats to another, which answers alone
_NOT_REPEATED = frozenset(
    ("accept-encoding", "connection", "content-length", "expect", "te", "transfer-encoding", _ASKED.lower())
)


class PassedConnection(msgspec.Struct, array_like=True):
    """Describes a connection on its way: the client's address, the listener's name, and what was read so far."""

    address: Any
    listener: Any
    data: bytes


class OtherAnswer(NamedTuple):
    """Holds what another process has answered."""

    status: int
    body: bytes


class Siblings:
    """Knows the processes of one server. Belongs to the hub's thread of one of them."""

    def __init__(
        self,
        folder: str,
        n_processes: int,
        take: Callable[[_socket.socket, Any, Any, bytes], None],
        *,
        server: int = 0,
        front: int = 0,
    ) -> None:
        """`folder`: the run directory, which is there. `take`: serves a connection that another process has passed.

        `server`: the number of the server, which all of its processes have: that of their parent. `front`: the number
        of this process among all that the server has started.
        """
        self.front = front
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
        passed = PassedConnection(address, listener, data)
        deadline = time.monotonic() + _PATIENCE
        following: str | None = owner
        try:
            while following is not None:
                if self._send(following, passed, connection.fileno(), deadline):
                    return True
                following = self.owner_of(request)
        except TimeoutError:
            return self._fail(request)
        return False

    def _send(self, process: str, passed: PassedConnection, fd: int, deadline: float) -> bool:
        """Passes a descriptor to another process; returns False if it is gone. Raises TimeoutError if it is busy."""
        message = msgspec.msgpack.encode(passed)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [fd]))]
        while time.monotonic() < deadline:
            try:
                self._socket.sendmsg([message], rights, 0, process)
                return True
            except BlockingIOError:
                gevent.sleep(_PAUSE)
            except OSError as error:
                log.info("worker process %s is gone: %s", Path(process).stem, error)
                with contextlib.suppress(OSError):
                    Path(process).unlink(missing_ok=True)
                self._known_until = 0.0
                return False
        raise TimeoutError

    def ask_others(self, request: flask.Request, body: bytes = b"") -> list[OtherAnswer]:
        """Sends a request to every other process as well, with this body; returns what they have answered.

        Waits for two seconds at most; a process that has not answered by then is left out. Returns nothing for a
        request that another process has sent: this one answers it alone.
        """
        if is_repeated(request):
            return []
        environ = request.environ
        passed = PassedConnection(
            (environ.get("REMOTE_ADDR", ""), 0),
            (environ["SERVER_NAME"], int(environ["SERVER_PORT"] or 0)),
            _repeated(request, body),
        )
        others = [path for path in self._live() if path != self._path]
        asked = [gevent.spawn(self._ask, path, passed, time.monotonic() + _PATIENCE) for path in others]
        gevent.joinall(asked)
        return [one.value for one in asked if one.value is not None]

    def _ask(self, process: str, passed: PassedConnection, deadline: float) -> OtherAnswer | None:
        ours, theirs = gevent_socket.socketpair()
        try:
            if not self._send(process, passed, theirs.fileno(), deadline):
                return None
            theirs.close()
            ours.settimeout(max(_PAUSE, deadline - time.monotonic()))
            answer = HTTPResponse(ours, method=None)
            answer.begin()
            return OtherAnswer(answer.status, answer.read())
        except (OSError, HTTPException) as error:  # a TimeoutError among them
            log.warning("worker process %s did not answer: %r", Path(process).stem, error)
            return None
        finally:
            ours.close()
            theirs.close()

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


def is_repeated(request: flask.Request) -> bool:
    """Tells whether another process has sent a request, or a client that wants the answer of one process alone."""
    return _ASKED in request.headers


def _repeated(request: flask.Request, body: bytes) -> bytes:
    """Writes a request anew, for a process that is to answer it alone."""
    lines = [f"{request.method} {request.environ['RAW_URI']} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers if name.lower() not in _NOT_REPEATED]
    lines += [f"{_ASKED}: this", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
