"""Passes connections between the worker processes of one server, so that each caller's state is in one of them.

Stored responses, conversations, answers under idempotency keys, streams that may be resumed, groups, objects, and what
an API key with limits has left are kept in memory. A request that makes or needs some goes to the process that its
caller's credentials choose: the whole connection does, with what was read of it, over a Unix socket. No byte of the
answer is copied. Other requests stay where they arrived.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import flask
import gevent
import msgspec
from gevent import socket as gevent_socket
from gevent.hub import get_hub
from gunicorn.http.message import Request

from corosrv.base.run_dir import locked, path_in
from corosrv.web.http.connection import Overloaded
from corosrv.web.http.reply import Flood
from corosrv.web.http.terms import FROM_CALLER, FROM_WORKER
from corosrv.web.keys import PEER_CALLER, digest, key_of

log = logging.getLogger("corosrv.http")

_NEEDS_STATE = re.compile(r"/(?:responses|conversations|groups|streams?|objects)(?:/|$)")
_STATE_FIELDS = frozenset(("IDEMPOTENCY-KEY", "X-CONVERSATION-ID", "X-GROUP-ID"))
_SESSION = "X-SESSION-ID"
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
    """Describes a connection on its way: the client's address, the listener's name, and what was read so far.

    `environ`: what the process that passes it says of the next request, in the WSGI environment; no client can.
    """

    address: Any
    listener: Any
    data: bytes
    environ: dict[str, str] = {}


class OtherAnswer(NamedTuple):
    """Holds what another process has answered."""

    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})  # by their names in lower case


class FrontSocket(NamedTuple):
    """Names a process by its socket: of the places, as many as there are processes, each has the callers of its own.

    `front`: the number of the process among all that the server has started. Of several in one place the last counts.
    """

    path: str
    place: int
    front: int
    pid: int

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()


class AskOthers(Protocol):
    """Sends a request to the other processes, and returns their answers; see Siblings.ask_others."""

    def __call__(self, request: flask.Request, body: bytes = b"", path: str = "") -> list[OtherAnswer]: ...


def no_others(request: flask.Request, body: bytes = b"", path: str = "") -> list[OtherAnswer]:
    """Returns no answers, where the server has one process."""
    return []


class Siblings:
    """Knows the processes of one server. Belongs to the hub's thread of one of them."""

    def __init__(
        self,
        folder: str,
        n_processes: int,
        take: Callable[[_socket.socket, Any, Any, bytes, dict[str, str]], None],
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
        self._pid = os.getpid()
        self._path = self._path_at(n_processes)  # whose length is checked; its place is chosen later
        self._began = time.monotonic()
        self._known: list[FrontSocket] = []
        self._known_until = 0.0
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._watcher: Any = None
        # Tell whether a caller's API key has limits: one process has to count for such a key.
        self.limiting: list[Callable[[str], bool]] = []
        # Tell of each server of this process whether it knows callers by their credentials: else all are one.
        self.knows_callers: list[bool] = []
        self.keeps_sessions = False  # calls of a session belong to one process, whose handlers may know it
        self._unpassed = Flood(log, "%d requests could not be passed to the worker process that has their state")

    def start(self) -> None:
        """Takes connections from now on, in the place of a process that has ended. Raises OSError."""
        with locked(self._folder):
            n_in = Counter(one.place for one in self._find() if one.is_alive())
            self._path = self._path_at(min(range(self._n_processes), key=lambda place: n_in[place]))
            Path(self._path).unlink(missing_ok=True)  # of an earlier process with these numbers
            self._socket.bind(self._path)
        self._known_until = 0.0
        self._watcher = get_hub().loop.io(self._socket.fileno(), _READ)
        self._watcher.start(self._receive)

    def _path_at(self, place: int) -> str:
        return path_in(self._folder, f"{self._prefix}{place}-{self.front}-{self._pid}{_SUFFIX}")

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
                address, listener = _tuple(passed.address), _tuple(passed.listener)
                self._take(_socket.socket(fileno=fd), address, listener, passed.data, passed.environ)

    def owner_of(self, request: Request) -> str | None:
        """Returns the other process that a request belongs to; None for one that is served here.

        Its head was read, and nothing of its body was used. May wait at a start, and while API keys are read again.
        """
        caller = self._caller_of(request)
        needs_state = _NEEDS_STATE.search(request.path) or any(name in _STATE_FIELDS for name, _ in request.headers)
        if needs_state or self._has_limits(caller):
            return self._choose(caller)
        session = (
            next((value for name, value in request.headers if name == _SESSION), "") if self.keeps_sessions else ""
        )
        return self._choose(f"{caller}\0{session}") if session else None

    def _caller_of(self, request: Request) -> str:
        """Returns the name of the caller whose API key is in a request's head, made from the key; empty without one,
        and where no key is asked for: what one client has stored is found by all, whatever they send as their key.

        A peer says the name in place of the key. Whether it is one is seen where the request is served.
        """
        fields = dict(request.headers)
        key = None
        if any(self.knows_callers) or not self.knows_callers:
            key = key_of(fields.get("AUTHORIZATION", ""), fields.get("X-API-KEY", ""))
        return fields.get(PEER_CALLER.upper(), "") if key is None else digest(key).hex()

    def _has_limits(self, caller: str) -> bool:
        return any(has_limits(caller) for has_limits in self.limiting)

    def _choose(self, caller: str) -> str | None:
        """Chooses by the highest hash of place and caller: when a process ends, the callers of all others stay, also
        when another one takes its place."""

        def rank(process: FrontSocket) -> tuple[bytes, int]:
            return hashlib.blake2b(f"{process.place}\0{caller}".encode()).digest(), process.front

        owner = max(self._live(), key=rank, default=None)
        return None if owner is None or owner.path == self._path else owner.path

    def is_elsewhere(self, caller: str) -> bool:
        """Tells whether another process has a caller's state. May wait at a start."""
        return self._choose(caller) is not None

    def _find(self) -> Iterator[FrontSocket]:
        for path in Path(self._folder).glob(f"{self._prefix}*{_SUFFIX}"):
            numbers = path.name.removeprefix(self._prefix).removesuffix(_SUFFIX).split("-")
            if len(numbers) == 3 and all(map(str.isdecimal, numbers)):
                yield FrontSocket(str(path), *map(int, numbers))

    def _live(self) -> list[FrontSocket]:
        """Lists the processes by their sockets. Waits at the start, until all are there."""
        now = time.monotonic()
        if now < self._known_until:
            return self._known
        while True:
            found = list(self._find())
            if len(found) >= self._n_processes or time.monotonic() - self._began > _START:
                break
            gevent.sleep(0.05)
        self._known = found
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

    def connect(self, caller: str, environ: dict[str, str]) -> HTTPConnection | None:
        """Opens a connection to the process that has a caller's state; None where this one has.

        `environ`: what the first request on it has in its WSGI environment. Waits for a process that is busy. Raises
        OSError.
        """
        passed = PassedConnection(("", 0), ("localhost", 0), b"", environ)
        deadline = time.monotonic() + _PATIENCE
        while (owner := self._choose(caller)) is not None:
            ours, theirs = gevent_socket.socketpair()
            connection = HTTPConnection("localhost")
            connection.sock = ours
            is_sent = False
            try:
                with theirs:
                    is_sent = self._send(owner, passed, theirs.fileno(), deadline)
            finally:
                if not is_sent:
                    connection.close()
            if is_sent:
                return connection
        return None

    def ask_others(self, request: flask.Request, body: bytes = b"", path: str = "") -> list[OtherAnswer]:
        """Sends a request to every other process as well, with this body; returns what they have answered.

        `path`: where another one of this client's is sent, by POST, in place of this one.

        Waits for two seconds at most; a process that has not answered by then is left out. Returns nothing for a
        request that another process has sent: this one answers it alone.
        """
        if is_repeated(request):
            return []
        environ = request.environ
        passed = PassedConnection(
            (environ.get("REMOTE_ADDR", ""), 0),
            (environ["SERVER_NAME"], int(environ["SERVER_PORT"] or 0)),
            _repeated(request, body, path),
            {FROM_WORKER: "1"},
        )
        return self._ask_all(passed)

    def fetch(self, path: str, caller: str) -> OtherAnswer | None:
        """Returns what another process has for a caller at this path; None where none has anything. Waits as
        ask_others() does."""
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{_ASKED}: this\r\nConnection: close\r\n\r\n"
        environ = {FROM_CALLER: caller, FROM_WORKER: "1"}
        answers = self._ask_all(PassedConnection(("", 0), ("localhost", 0), head.encode("latin-1"), environ))
        return next((answer for answer in answers if answer.status == HTTPStatus.OK), None)

    def _ask_all(self, passed: PassedConnection) -> list[OtherAnswer]:
        others = [one.path for one in self._live() if one.path != self._path]
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
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return OtherAnswer(answer.status, answer.read(), headers)
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
        if self._has_limits(self._caller_of(request)):
            raise Overloaded
        return False


def head_of(request: Request) -> bytes:
    """Writes the head of a request as it was sent, but for the case of its fields' names."""
    lines = [f"{request.method} {request.uri} HTTP/{request.version[0]}.{request.version[1]}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def is_repeated(request: flask.Request) -> bool:
    """Tells whether another process has sent a request, or a client that wants the answer of one process alone."""
    return _ASKED in request.headers


def _repeated(request: flask.Request, body: bytes, path: str) -> bytes:
    """Writes a request anew, or one to another path, for a process that is to answer it alone."""
    lines = [f"POST {path} HTTP/1.1" if path else f"{request.method} {request.environ['RAW_URI']} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers if name.lower() not in _NOT_REPEATED]
    lines += [f"{_ASKED}: this", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
