"""Runs a worker process that joins a server, and starts another one when it ends: `corosrv worker`.

The connection that asks a server to let the worker join becomes the worker's control channel. `Membership` keeps a
server among the upstreams of fronts for as long as it is told to.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

from corosrv.base.errors import ManagementError, Unavailable
from corosrv.contracts.settings import child_environment
from corosrv.web.management.client import ManagementClient, UnixConnection, decode_answer, path_of, running_servers
from corosrv.web.management.join_routes import JOIN, PROTOCOL
from corosrv.web.management.remote import RemoteClient
from corosrv.workers.manager.joined import Joining
from corosrv.workers.manager.pool_memory import CrashRecord
from corosrv.workers.manager.snapshot import PlaceState


@dataclass(frozen=True)
class JoinedConnection:
    """Holds the connection of a worker that has joined, its name there, and a client of that server."""

    connection: socket.socket
    worker_id: str
    client: ManagementClient


class _UnbufferedResponse(http.client.HTTPResponse):
    """Reads no byte more than the head: what follows is for the worker."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = sock.makefile("rb", buffering=0)  # type: ignore[assignment]


def join(path: str, joining: Joining) -> JoinedConnection:
    """Joins the server at a socket, or the one that runs in a folder. Waits.

    Raises OSError where none answers, Unavailable where it takes no worker now, ManagementError where it refuses this
    one, and SettingsError for a folder that others can use.
    """
    client = _server_in(path) if Path(path).is_dir() else ManagementClient(path)
    asked = {
        "app": joining.app_ref,
        "app_dir": joining.app_dir,
        "factory": str(int(joining.is_factory)),
        "pool": joining.pool,
    }
    connection = UnixConnection(client.path)
    connection.response_class = _UnbufferedResponse
    try:
        connection.request("POST", f"{JOIN}?{urlencode(asked)}", headers={"Connection": "Upgrade", "Upgrade": PROTOCOL})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            _raise(answer)
        connection.sock.settimeout(None)
        return JoinedConnection(connection.sock.dup(), answer.headers["X-Corosrv-Worker"], client)
    except http.client.HTTPException as error:
        raise ManagementError(f"the server at {client.path} gave no answer: {error!r}") from None
    finally:
        connection.close()


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
        decode_answer(answer.status, answer.read())
    except ManagementError as error:
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable(str(error)) from None
        raise
    raise ManagementError(f"the server answered with status {answer.status}, and is none that workers can join")


class Membership:
    """Adds a server to fronts again and again, so that one which was started anew knows it. One thread's."""

    def __init__(
        self, fronts: Iterable[RemoteClient], body: Mapping[str, Any], say: Callable[[str], None] = print
    ) -> None:
        """`body`: of POST /workers. `say`: is told what has changed, and nothing twice in a row."""
        self._fronts = tuple(fronts)
        self._body = dict(body)
        self._say = say
        self._said: dict[str, str] = {}  # the last words about each front of the last round

    def renew(self) -> None:
        """Adds the server to each front that lacks it. Waits for each; failures are reported, not raised."""
        self._tell_each(self._add)

    def leave(self) -> None:
        """Removes the server everywhere; what it runs for a front may end. Waits and tells as renew() does."""
        self._tell_each(self._remove)

    def _tell_each(self, call: Callable[[ManagementClient], str]) -> None:
        words: dict[str, str] = {}
        for front in self._fronts:
            try:
                clients = front.each_address()
            except OSError as error:
                words[front.path] = f"the name in it leads nowhere: {error}"
                continue
            for client in clients:
                words[client.path] = _outcome(call, client)
        for place, text in words.items():
            if self._said.get(place) != text:
                self._say(f"{place}: {text}")
        self._said = words

    def _add(self, client: ManagementClient) -> str:
        answer = client.call("POST", "/workers", self._body)
        return f"{answer['url']} is an upstream, {answer['id']}"

    def _remove(self, client: ManagementClient) -> str:
        answer = client.call("DELETE", f"/workers/{quote(self._body['url'], safe='')}?mode=drain")
        return f"{answer['url']} leaves"


def _outcome(call: Callable[[ManagementClient], str], client: ManagementClient) -> str:
    try:
        return call(client)
    except (ManagementError, OSError) as error:
        return f"no success: {error}"


STOPS = (signal.SIGTERM, signal.SIGINT)
LOOK = 0.05  # seconds between two looks whether the server has noticed the end
RETRY = 1.0  # seconds between two tries to join a server that is not there
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
            member.connection.close()
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
        self._member.connection.close()

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

    def __init__(self, path: str, joining: Joining, patience: float, say: Callable[[str], None]) -> None:
        """`path`: of a server's socket, or of the folder that has it. `patience`: seconds for running calls at a stop.

        `say` is told what has changed.
        """
        self._path = path
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
            stops.wait(RETRY if member is None else self._live(member, stops))

    def _join(self) -> JoinedConnection | None:
        """Returns None where no server is ready for it yet."""
        try:
            return join(self._path, self._joining)
        except Unavailable as error:
            self._tell(f"cannot join yet, and goes on trying: {error}")
        except OSError as error:
            self._tell(f"no server answers at {self._path}, and this goes on trying: {error.strerror or error}")
        return None

    def _live(self, member: JoinedConnection, stops: StopSignals) -> float:
        """Runs one process to its end; returns how long to wait before the next. Raises ManagementError if in vain."""
        self._tell(f"joined {member.client.path} as {member.worker_id}")
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
