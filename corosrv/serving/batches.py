"""Runs batches: those of a server's folder, and for `corosrv batch` those of one file, without an HTTP server."""

from __future__ import annotations

import functools
import http.client
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import gevent
from flask import Flask

from corosrv.base.errors import Refused, SettingsError
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ServerSettings
from corosrv.dialects.openai.batches import lines
from corosrv.dialects.openai.batches.folder import FileFolder
from corosrv.dialects.openai.batches.lines import LineReader, RequestLine, ResultFile
from corosrv.dialects.openai.batches.runner import BatchRunner
from corosrv.dialects.openai.batches.running import (
    AppCaller,
    CallsLines,
    Gate,
    LineReply,
    LineRun,
    reply_of,
    seconds_until,
    terms_of_line,
)
from corosrv.serving.part import ServerContext, why_not_served
from corosrv.web.http.siblings import Siblings

ANSWER_S = 600.0  # without a byte of an answer, after which its line is sent again
_LOOK_S = 0.2
_MOST_AT_ONCE = 256  # lines, where the slots of the model are as many
_NO_END = 2.0**40  # a deadline that is never reached, in Unix time
_JSON = {"Content-Type": "application/json"}
_LOST = LineReply(503, "", b'"the server cannot be reached"', 5.0)


class Batches:
    """The files of a server, and the batches that it runs while no other process does."""

    def __init__(
        self,
        settings: ServerSettings,
        find_stats: Callable[[], DecodeStats | None] | None,
        make_app: Callable[[], Flask],
        find_siblings: Callable[[], Siblings | None],
    ) -> None:
        """`find_stats`: of the decode loop; None: there is none. `make_app`: makes what answers the lines, once.

        `find_siblings`: the other worker processes, which are known once the server is made; None: there are none.
        Raises SettingsError.
        """
        if problem := why_not_served("batches (COROSRV_FILES_PATH)"):
            raise SettingsError(problem)
        if not os.access(settings.files_path, os.R_OK | os.W_OK | os.X_OK):
            raise SettingsError(f"COROSRV_FILES_PATH: this user may not write to {settings.files_path}")
        owner_bytes = settings.files_bytes // max(settings.n_shares, 1)
        self.folder = FileFolder(settings.files_path, owner_bytes, settings.file_bytes)
        self._make_app = functools.cache(make_app)
        self._find_siblings = find_siblings
        gate = Gate(settings.batch_lines, find_stats)
        self.runner = BatchRunner(self.folder, self._caller, gate, settings.max_body_bytes)

    def _caller(self, owner: str) -> CallsLines:
        here = AppCaller(self._make_app().wsgi_app, owner)
        siblings = self._find_siblings()
        return here if siblings is None else _SiblingCaller(siblings, owner, here)

    def start(self) -> None:
        self.runner.start()

    def stop(self) -> None:
        """Runs no more lines; those that run are stopped. Never waits."""
        gevent.spawn(self.runner.close)

    def close(self) -> None:
        """Stops the lines that run, and gives the folder to another process. Waits; twice is harmless."""
        self.runner.close()


class ServerParts(Protocol):
    """The parts of a server, which answer requests of this process."""

    context: ServerContext

    def start(self) -> None: ...

    def close(self) -> None: ...

    def inner_app(self) -> Flask: ...


@contextmanager
def own_caller(server: ServerParts) -> Iterator[tuple[CallsLines, Gate]]:
    """Starts a server's parts, and waits until they are ready. Raises CorosrvError."""
    server.start()
    try:
        while server.context.state is State.STARTING:
            gevent.sleep(_LOOK_S)
        server.context.check()
        yield AppCaller(server.inner_app().wsgi_app), Gate(_MOST_AT_ONCE, server.context.stats)
    finally:
        server.close()


def url_caller(
    connect: Callable[[], http.client.HTTPConnection], prefix: str, key: str, n: int
) -> tuple[CallsLines, Gate]:
    """Returns what sends requests to a server, `n` at once."""
    return _UrlCaller(connect, prefix, key), Gate(n)


class _UrlCaller:
    """Sends requests to a server, over a connection for each."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection], prefix: str, key: str) -> None:
        self._connect = connect
        self._prefix = prefix
        self._headers = _JSON | ({"Authorization": f"Bearer {key}"} if key else {})

    def call(self, line: RequestLine, deadline: float) -> LineReply:
        """Waits, also for a server that cannot be reached now."""
        return _post(self._connect(), self._prefix + line.url, line.body, self._headers)


class _SiblingCaller:
    """Sends the lines of an owner to the worker process that has the owner's limits and state."""

    def __init__(self, siblings: Siblings, owner: str, app_caller: CallsLines) -> None:
        """`app_caller`: answers lines where this process is that one."""
        self._siblings = siblings
        self._owner = owner
        self._app_caller = app_caller

    def call(self, line: RequestLine, deadline: float) -> LineReply:
        """Waits, also for a process that is busy or gone now."""
        try:
            connection = self._siblings.connect(self._owner, terms_of_line(self._owner, deadline))
        except OSError:
            return _LOST
        if connection is None:
            return self._app_caller.call(line, deadline)
        connection.sock.settimeout(seconds_until(deadline) + _LOOK_S)
        return _post(connection, line.url, line.body, _JSON)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> LineReply:
    """Sends a request, and closes the connection. Waits."""
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return reply_of(answer.status, fields, answer.read())
    except (OSError, http.client.HTTPException):
        return _LOST
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class FileCounts:
    """Counts of a file's lines: those that there are, that are done, and that failed."""

    total: int
    done: int
    failed: int


def count_lines(source: Path, line_bytes: int) -> int:
    """Checks all lines of a file, and counts them. Raises Refused, which tells the first faults."""
    check = lines.LineCheck(most_lines=2**62)
    with ExitStack() as stack:
        reader = LineReader(source, line_bytes, None)
        stack.callback(reader.close)
        while not check.is_full and (found := reader.next_slice()):
            check.add(found)
    check.finish()
    if check.faults:
        shown = [f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in check.faults[:10]]
        more = [f"and {len(check.faults) - 10} more"] if len(check.faults) > 10 else []
        raise Refused("\n".join((f"{source} is no batch:", *shown, *more)))
    return check.n_lines


def run_file(
    source: Path, target: Path, caller: CallsLines, gate: Gate, line_bytes: int, tell: Callable[[FileCounts], None]
) -> FileCounts:
    """Runs the lines of a file that another file has no results of yet, to which they are added.

    Waits; tells the counts from time to time. Raises Refused, SettingsError and OSError.
    """
    total = count_lines(source, line_bytes)
    with ExitStack() as stack:
        results = ResultFile(target)
        stack.callback(results.close)
        reader = LineReader(source, line_bytes, None)
        stack.callback(reader.close)

        def put(line: RequestLine, reply: LineReply) -> None:
            is_failed = not lines.is_good(reply.status)
            results.add(line.custom_id, lines.result(line.custom_id, reply.response()), is_failed)

        def counts() -> FileCounts:
            return FileCounts(total, results.n_lines, results.n_failed)

        run = LineRun(reader, results.done.__contains__, caller, gate, put, _NO_END)
        stack.callback(run.close)
        run.start()
        while not run.is_ended.wait(_LOOK_S):
            run.check()
            tell(counts())
        run.check()
        return counts()
