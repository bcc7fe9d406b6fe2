"""Runs lines of batches against an application, or whatever else answers them: few at once, and only where there is
room beside other requests. What is refused for lack of room is tried again.

Greenlets wait here; all of it belongs to the hub's thread.
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import gevent
import msgspec
from gevent.event import Event
from gevent.lock import Semaphore
from gevent.pool import Pool

from corosrv.base.errors import Refused
from corosrv.base.outgoing import retry_after
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs.terms import LAST_PRIORITY, MAX_TIMEOUT_MS, PRIORITY, TIMEOUT
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.dialects.openai.batches.lines import LineReader, LineResponse, RequestLine
from corosrv.web.http.terms import FROM_BATCH

_LOOK_S = 0.05  # between two looks for room
_BEGINS_S = 0.2  # in which a line has its slot, if there is one
_N_LOOKS, _FEW_LOOKS = 10, 3  # that tell whether others run, and that do not yet
_FULL = (429, 503)
_CLOSE_S = 10.0  # in which a line that is stopped has ended


@dataclass(frozen=True, slots=True)
class LineReply:
    """An answer to a line. `wait`: seconds after which another try may have another answer; None: it is the last."""

    status: int
    request_id: str
    body: bytes
    wait: float | None = None

    def response(self) -> LineResponse:
        """Returns the answer as a line of results has it: JSON without line breaks, or a text."""
        try:
            whole = msgspec.json.encode(msgspec.json.decode(self.body)) if b"\n" in self.body else self.body
            body = msgspec.Raw(whole or b"null")
            msgspec.json.decode(body, type=msgspec.Raw)
        except (msgspec.MsgspecError, RecursionError):
            body = msgspec.Raw(msgspec.json.encode(self.body.decode("utf-8", "replace")))
        return LineResponse(self.status, self.request_id, body)


def reply_of(status: int, headers: dict[str, str], body: bytes) -> LineReply:
    """Makes a reply of an answer over HTTP. Names of headers are in lower case."""
    wait = None
    if status in _FULL and (status == 503 or "retry-after" in headers):
        wait = max(retry_after(headers.get("retry-after"), time.time()), 1.0)
    return LineReply(status, headers.get("x-request-id", ""), body, wait)


class CallsLines(Protocol):
    """Anything that answers the requests of lines."""

    def call(self, line: RequestLine, deadline: float) -> LineReply:
        """Waits for the answer; `deadline`: when it is of no more use, in Unix time."""


class AppCaller:
    """Sends requests to an application of this process, in the name of an owner and in the last tier."""

    def __init__(self, app: Callable[[dict[str, Any], Any], Any], owner: str = "") -> None:
        self._app = app
        self._owner = owner

    def call(self, line: RequestLine, deadline: float) -> LineReply:
        answers: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            answers.append((status, headers))

        pieces = self._app(self._environ(line, deadline), start_response)
        try:
            body = b"".join(pieces)
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
        status, headers = answers[-1]
        return reply_of(int(status[:3]), {name.lower(): value for name, value in headers}, body)

    def _environ(self, line: RequestLine, deadline: float) -> dict[str, Any]:
        return {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": line.url,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(line.body)),
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "0",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(line.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **terms_of_line(self._owner, deadline),
        }


def seconds_until(deadline: float) -> float:
    """Returns the seconds until a deadline in Unix time; 0 once it has passed."""
    return max(deadline - time.time(), 0.0)


def terms_of_line(owner: str, deadline: float) -> dict[str, str]:
    """Returns what the WSGI environment of a line says of it: whose it is, and that it is in the last tier."""
    timeout_ms = min(max(seconds_until(deadline) * 1000, 1), MAX_TIMEOUT_MS)
    return {FROM_BATCH: owner, _field(PRIORITY): str(LAST_PRIORITY), _field(TIMEOUT): str(int(timeout_ms))}


def _field(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


class Gate:
    """Lets lines run: so many at once, a quarter of them beside other requests, and none where somebody waits.

    A slot stays free for whoever comes next, unless lines are alone.
    """

    def __init__(self, n: int, find_stats: Callable[[], DecodeStats | None] | None = None) -> None:
        """`find_stats`: of the decode loop that runs the lines; None: somebody else looks after the room."""
        self.n = n
        self.n_running = 0
        self._find_stats = find_stats
        self._turn = Semaphore(1)  # one line at a time looks for room
        # How many more slots are in use than lines run, as seen lately: the counters are those of the last step, so
        # that one look right after a line's end would take the line itself for somebody else.
        self._n_others: deque[int] = deque(maxlen=_N_LOOKS)
        self._watcher: Any = None
        self._began: deque[float] = deque(maxlen=n)  # when lines began lately, which may wait for the next step

    @contextmanager
    def place(self) -> Iterator[None]:
        """Waits until a line may run."""
        with self._turn:
            while not self._has_room():
                gevent.sleep(_LOOK_S)
            self.n_running += 1
            self._began.append(time.monotonic())
        if self._find_stats is not None and self._watcher is None:
            self._watcher = gevent.spawn(self._watch, self._find_stats)
        try:
            yield
        finally:
            self.n_running -= 1

    def _watch(self, find_stats: Callable[[], DecodeStats | None]) -> None:
        """Looks for others while lines run."""
        try:
            while self.n_running:
                if (stats := find_stats()) is not None:
                    self._n_others.append(stats.running - self.n_running)
                gevent.sleep(_LOOK_S)
        finally:
            self._watcher = None
            self._n_others.clear()

    def _has_room(self) -> bool:
        if self._find_stats is None:
            return self.n_running < self.n
        few = max(self.n // 4, 1)
        stats = self._find_stats()
        if stats is None:  # no model is loaded yet, or it runs elsewhere
            return self.n_running < few
        now = time.monotonic()
        if stats.waiting > sum(now - began < _BEGINS_S for began in self._began):
            return False
        if self._has_others(stats.running):
            return self.n_running < few and stats.running < stats.slots - 1
        return self.n_running < min(self.n, stats.slots)

    def _has_others(self, n_now: int) -> bool:
        if len(self._n_others) < _FEW_LOOKS:
            return n_now > self.n_running
        return 2 * sum(self._n_others) > len(self._n_others)


class LineRun:
    """Runs the lines of a file that are not done, and hands on each answer. One for each run of a batch."""

    def __init__(
        self,
        reader: LineReader,
        done: Callable[[str], bool],
        caller: CallsLines,
        gate: Gate,
        put: Callable[[RequestLine, LineReply], None],
        deadline: float,
    ) -> None:
        """`done`: tells whether a line needs to run no more. `put`: takes a line's last answer; its errors end the run.

        `deadline`: in Unix time.
        """
        self._reader = reader
        self._done = done
        self._caller = caller
        self._gate = gate
        self._put = put
        self._deadline = deadline
        self._pool = Pool(gate.n)
        self._error: Exception | None = None
        self.is_ended = Event()
        self._feeder: Any = None

    def start(self) -> None:
        self._feeder = gevent.spawn(self._feed)

    def _feed(self) -> None:
        try:
            while self._error is None and (lines := call_in_thread(self._reader.next_slice)):
                for _, line in lines:
                    if self._error is None and not isinstance(line, Refused) and not self._done(line.custom_id):
                        self._pool.spawn(self._run, line)  # waits for one that ends
            self._pool.join()
        except Exception as error:
            self._error = self._error or error
        finally:
            self.is_ended.set()

    def _run(self, line: RequestLine) -> None:
        try:
            while True:
                with self._gate.place():
                    reply = self._caller.call(line, self._deadline)
                if reply.wait is None or time.time() >= self._deadline:
                    break
                gevent.sleep(min(reply.wait, seconds_until(self._deadline)))
            if time.time() < self._deadline or reply.status not in (*_FULL, 504):  # else it has expired
                self._put(line, reply)
        except Exception as error:
            self._error = self._error or error

    def close(self) -> None:
        """Stops the lines that run, whose answers are lost. Waits until they have; twice is harmless."""
        if self._feeder is not None:
            self._feeder.kill(timeout=_CLOSE_S)
        self._pool.kill(timeout=_CLOSE_S)

    def check(self) -> None:
        """Raises what ended the run."""
        if self._error is not None:
            raise self._error
