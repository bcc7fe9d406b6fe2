"""Runs a worker process that joins a server, and starts another one when it ends: `corosrv worker`.

The connection that asks a server to let the worker join becomes the worker's control channel; over TCP it carries the
lanes of the worker's calls, too.
"""

from __future__ import annotations

import _socket
import contextlib
import http.client
import os
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

import gevent

from corosrv.base.errors import ManagementError, Unavailable
from corosrv.contracts.settings import child_environment
from corosrv.web.management.client import (
    ManagementClient,
    RemoteClient,
    decode_answer,
    path_of,
    read_answer,
    running_servers,
)
from corosrv.web.management.worker_routes import JOIN, PROTOCOL, REMOTE_PROTOCOL
from corosrv.workers.manager.joined import Joining
from corosrv.workers.manager.plan import PlaceState
from corosrv.workers.manager.pool_memory import CrashRecord
from corosrv.workers.wire.relay import Relay


@dataclass(frozen=True, kw_only=True)
class JoinTarget:
    """The server that a worker joins. `place`: a socket, the folder that has it, or the URL of a management port.

    `token` and `ca_file` are for a URL.
    """

    place: str
    token: str = ""
    ca_file: str = ""

    @property
    def is_remote(self) -> bool:
        return "://" in self.place


class RelayThread(threading.Thread):
    """A thread with a hub of its own, in which the control channel of a worker goes on over a TCP connection."""

    def __init__(self, connection: socket.socket, control: _socket.socket) -> None:
        super().__init__(name="corosrv-relay", daemon=True)
        self._connection = connection
        self._control = control
        self._same_connection = _socket.socket(fileno=os.dup(connection.fileno()))  # TLS keeps off other threads

    def run(self) -> None:
        try:
            Relay(self._connection, self._control, opens_lanes=False).run()
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    def end(self) -> None:
        """Waits until the thread has ended: a hub that outlives the interpreter crashes the process.

        It ends by itself once the control channel is closed; a connection that takes nothing any more is cut.
        """
        self.join(RELAY_END)
        with contextlib.suppress(OSError):  # it is gone already
            self._same_connection.shutdown(_socket.SHUT_RDWR)
        self.join(RELAY_END)
        self._same_connection.close()


@dataclass(frozen=True)
class JoinedConnection:
    """Holds the connection of a worker that has joined, its name there, and a client of that server."""

    connection: socket.socket
    worker_id: str
    client: ManagementClient
    relay: RelayThread | None = None  # over TCP

    def close(self) -> None:
        """Closes the connection; waits until its last messages are passed on, or are given up."""
        self.connection.close()
        if self.relay is not None:
            self.relay.end()


class _UnbufferedResponse(http.client.HTTPResponse):
    """Reads no byte more than the head: what follows is for the worker."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = sock.makefile("rb", buffering=0)  # type: ignore[assignment]


def join(target: JoinTarget, joining: Joining) -> JoinedConnection:
    """Joins a server. Waits.

    Raises OSError where none answers, Unavailable where it takes no worker now, ManagementError where it refuses this
    one or cannot be trusted, and SettingsError for a folder that others can use.
    """
    path = target.place
    client: ManagementClient
    if target.is_remote:
        client, protocol = RemoteClient(path, target.token, ca_file=target.ca_file), REMOTE_PROTOCOL
    else:
        client, protocol = _server_in(path) if Path(path).is_dir() else ManagementClient(path), PROTOCOL
    connection = client.connect()
    connection.response_class = _UnbufferedResponse
    try:
        head = {"Connection": "Upgrade", "Upgrade": protocol} | client.headers()
        connection.request("POST", f"{JOIN}?{urlencode(_join_parameters(joining, target.is_remote))}", headers=head)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            _raise(answer)
        connection.sock.settimeout(None)
        if (worker_id := answer.headers["X-Corosrv-Worker"]) is None:
            raise ManagementError(f"the server at {path} takes up another protocol, and is none that workers can join")
        if not isinstance(client, RemoteClient):
            return JoinedConnection(connection.sock.dup(), worker_id, client)
        client.address = connection.sock.getpeername()
        sock, connection.sock = connection.sock, None
        ours, theirs = socket.socketpair()
        relay = RelayThread(sock, _socket.socket(fileno=theirs.detach()))
        relay.start()
        return JoinedConnection(ours, worker_id, client, relay)
    except ssl.SSLCertVerificationError as error:
        raise ManagementError(
            f"the certificate of {path} cannot be verified: {error.verify_message}; name its authority with --ca-file"
        ) from None
    except http.client.RemoteDisconnected:
        raise ConnectionResetError("it hung up without an answer; perhaps its port is one for https") from None
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            raise ManagementError(f"the server at {path} speaks no TLS: its URL begins with http://") from None
        raise
    except http.client.HTTPException as error:
        raise ManagementError(f"the server at {client.path} gave no answer: {error!r}") from None
    finally:
        connection.close()


def _join_parameters(joining: Joining, is_remote: bool) -> dict[str, str]:
    parameters = {
        "app": joining.app_ref,
        "app_dir": joining.app_dir,
        "factory": str(int(joining.is_factory)),
        "pool": joining.pool,
    }
    return parameters | {"pid": str(os.getpid())} if is_remote else parameters


def _server_in(folder: str) -> ManagementClient:
    servers = running_servers(folder)
    if not servers:
        raise FileNotFoundError(f"no server has a management socket in {folder}")
    if len(servers) > 1:
        paths = ", ".join(client.path for client, _ in servers)
        raise ManagementError(f"{len(servers)} servers run in {folder}: name the socket of one of them: {paths}")
    return servers[0][0]


def _raise(answer: http.client.HTTPResponse) -> NoReturn:
    """Raises what an answer says that is no upgrade."""
    try:
        decode_answer(answer.status, read_answer(answer))
    except ManagementError as error:
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable(str(error)) from None
        raise
    raise ManagementError(f"the server answered with status {answer.status}, and is none that workers can join")


STOPS = (signal.SIGTERM, signal.SIGINT)
LOOK = 0.05  # seconds between two looks whether the server has noticed the end
RETRY = 1.0  # seconds between two tries to join a server that is not there
LONGEST_RETRY = 15.0  # seconds, with a server on another machine, which many workers may wait for
RELAY_END = 5.0  # seconds in which the last messages of a worker on another machine are passed on
LAST_BREATH = 2.0  # seconds that a worker process may take to end by itself once its server is gone
_COMMAND = (sys.executable, "-m", "corosrv.workers.worker.app")
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class StopSignals:
    """Counts signals that ask this process to end, and wakes whoever polls. Belongs to the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._wake, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in STOPS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.count += 1
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._wakeup, b"!")

    def fileno(self) -> int:
        return self._wake

    def wait(self, seconds: float) -> bool:
        """Waits for a signal, at most so long; returns whether one has come, now or before."""
        if not self.count:
            select.select([self], [], [], seconds)
        return self.count > 0

    def clear(self) -> None:
        """Takes note that whoever polls has seen the count."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 64)


class WorkerLife:
    """Owns one worker process, which speaks over the connection that has joined a server. The main thread's.

    The process ends with its server, and with this process: both in the kernel's ways, whatever its code does.
    """

    def __init__(self, member: JoinedConnection) -> None:
        """Starts the process. Raises OSError."""
        self._member = member
        theirs, self._lifeline = os.pipe()
        control = member.connection.fileno()
        try:
            self._process = subprocess.Popen(
                [*_COMMAND, "--control", str(control), "--lifeline", str(theirs)],
                stdin=subprocess.DEVNULL,
                pass_fds=(control, theirs),
                env=child_environment(),
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            member.close()
            raise
        finally:
            os.close(theirs)
        self._pidfd = os.pidfd_open(self._process.pid)

    def run(self, stops: StopSignals, patience: float) -> None:
        """Waits until the process has ended.

        A first stop drains it; it is killed by a second one, `patience` seconds after the first, and when it does not
        end with its server.
        """
        n_seen, give_up_at = 0, None
        poll = select.poll()
        poll.register(self._member.connection, _HANG_UP)
        poll.register(self._pidfd, select.POLLIN)
        poll.register(stops, select.POLLIN)
        while True:
            timeout = None if give_up_at is None else max(0.0, give_up_at - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(timeout)} if stops.count == n_seen else set()
            if self._pidfd in ready:
                return
            if stops.count > n_seen:
                stops.clear()
                is_first, n_seen = n_seen == 0, stops.count
                if n_seen > 1 or not self._drain():
                    return
                give_up_at = time.monotonic() + patience if is_first else give_up_at
            elif self._member.connection.fileno() in ready:
                poll.unregister(self._member.connection)
                last = time.monotonic() + LAST_BREATH
                give_up_at = last if give_up_at is None else min(last, give_up_at)
            elif not ready:
                return

    def _drain(self) -> bool:
        """Asks the server to give it no more calls; returns whether it will."""
        try:
            self._member.client.call("POST", path_of("workers", self._member.worker_id, "drain"))
        except (ManagementError, OSError):
            return False
        return True

    def close(self) -> None:
        """Kills the process and its group if it runs, reaps it and closes the connection."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pidfd)
        os.close(self._lifeline)
        self._member.close()

    def standing(self) -> dict[str, Any]:
        """Returns what the server says of the worker that has failed. Waits for it to have noticed.

        Returns nothing where it has ended the worker itself, or is gone.
        """
        last = time.monotonic() + LAST_BREATH
        try:
            while True:
                standing = self._member.client.call("GET", path_of("workers", self._member.worker_id))
                if standing["state"] == PlaceState.FAILED.value or time.monotonic() >= last:
                    return standing
                time.sleep(LOOK)
        except (ManagementError, OSError):
            return {}


class Joiner:
    """Keeps one worker joined until it is stopped. Its `run` is the life of `corosrv worker`."""

    def __init__(self, target: JoinTarget, joining: Joining, patience: float, say: Callable[[str], None]) -> None:
        """`patience`: seconds for running calls at a stop. `say` is told what has changed."""
        self._target = target
        self._retry = RETRY
        self._joining = joining
        self._patience = patience
        self._say = say
        self._said = ""
        self._crashes = CrashRecord()
        self._has_been_ready = False

    def run(self) -> None:
        """Joins, again and again, until a signal ends it. Raises ManagementError and SettingsError where that is vain.

        It is where the server refuses this worker, or where the first process could not be set up.
        """
        stops = StopSignals()
        while not stops.count:
            member = self._join()
            stops.wait(self._pause() if member is None else self._live(member, stops))

    def _pause(self) -> float:
        """Returns how long to wait before another try: longer each time with a server on another machine."""
        if not self._target.is_remote:
            return RETRY
        pause = self._retry * random.uniform(0.5, 1.0)
        self._retry = min(2 * self._retry, LONGEST_RETRY)
        return pause

    def _join(self) -> JoinedConnection | None:
        """Returns None where no server is ready for it yet."""
        try:
            return join(self._target, self._joining)
        except Unavailable as error:
            self._tell(f"cannot join yet, and goes on trying: {error}")
        except OSError as error:
            self._tell(f"no server answers at {self._target.place}, and this goes on trying: {error.strerror or error}")
        return None

    def _live(self, member: JoinedConnection, stops: StopSignals) -> float:
        """Runs one process to its end; returns how long to wait before the next. Raises ManagementError if in vain."""
        self._tell(f"joined {member.client.path} as {member.worker_id}")
        self._retry = RETRY
        began = time.monotonic()
        life = WorkerLife(member)
        try:
            life.run(stops, self._patience)
        finally:
            life.close()
        if stops.count:
            return 0.0
        standing = life.standing()
        if not standing:
            self._tell("the server has ended the worker, or is gone; it joins again")
            return 0.0
        self._has_been_ready = self._has_been_ready or standing["was_ready"]
        if not self._has_been_ready:
            raise ManagementError(f"the worker could not be set up: {standing['reason']}")
        is_of_handler = bool(standing.get("keys_at_loss"))  # the server keeps calls from it; others need the worker
        pause = 0.0 if is_of_handler else self._crashes.add(time.monotonic(), began, standing["reason"])
        self._tell(f"the worker has failed: {standing['reason']}; another one starts in {pause:.1f} s")
        return pause

    def _tell(self, words: str) -> None:
        """Says something once, however often it is so."""
        if words != self._said:
            self._said = words
            self._say(words)
