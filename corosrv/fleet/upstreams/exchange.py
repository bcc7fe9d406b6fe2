"""Runs one HTTP exchange with an upstream: a request as it was sent, and its answer piece by piece.

`ask_shortly` is for small questions with a short time limit: whether it is well, what it serves, to abort a request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import gevent

from corosrv.base.errors import CorosrvError, Refused
from corosrv.base.outgoing import retry_after
from corosrv.base.waits import TimedOut
from corosrv.contracts.jobs.infer import AnswerHead, ForwardRequest, Headers
from corosrv.fleet.upstreams.answer_body import (
    BadAnswer,
    BodyDecoder,
    HeadReader,
    ReceivedHead,
    body_decoder,
    keeps_connection,
)
from corosrv.fleet.upstreams.connections import PIECE, UpstreamConnection, UpstreamConnections
from corosrv.fleet.upstreams.failures import UpstreamBusy, UpstreamDown, UpstreamLost, UpstreamSilent, words_of

# Of one hop, or made anew.
NOT_SENT = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[^\r\n\0]*")


def request_head(method: str, target: str, host: str, headers: Headers, n_body: int) -> bytes:
    """Writes a head, with the empty line at its end. Raises ValueError for what would not be one."""
    if not _NAME.fullmatch(method):
        raise ValueError(f"{method[:60]!r} is no method")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target[:60]!r} is no target of a request")
    lines = [f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n"]
    for name, value in headers:
        is_sent = _is_sent(name)
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of {name[:60]} has more than one line")
        if is_sent:
            lines.append(f"{name}: {value}\r\n")
    if n_body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {n_body}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


@lru_cache(256)  # of those that clients choose
def _is_sent(name: str) -> bool:
    """Tells whether a field goes to an upstream as it is. Raises ValueError for what is no name of one."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is no name of a field")
    return name.lower() not in NOT_SENT


SHORTEST_PAUSE = 1.0  # seconds, where an upstream that is busy names none

_NOT_PASSED_ON = frozenset({
    "connection", "content-length", "date", "keep-alive", "proxy-authenticate", "proxy-authorization", "server",
    "set-cookie", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip

# Takes a piece of a body; says whether more may come. Called in the hub: it must not wait.
PieceSink = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Limits of one exchange, in seconds."""

    first_byte: float = 600.0  # until the answer begins
    idle: float = 300.0  # between two pieces of the answer


class Exchange:
    """Sends one request and receives its answer. Belongs to one greenlet, whose end ends the call at the upstream."""

    def __init__(self, connections: UpstreamConnections, limits: ExchangeLimits) -> None:
        self._connections = connections
        self._limits = limits
        self._connection: UpstreamConnection | None = None
        self._head_reader: HeadReader | None = None  # until the head has come
        self._head: ReceivedHead | None = None
        self._body: BodyDecoder | None = None
        self._unread = b""  # what has come along with the head
        self._sink: PieceSink | None = None  # of the pump that waits
        self._turn = 0  # bytes that this pump has handed over
        self._is_reusable = True  # the connection, once the answer was read to its end
        self.is_sent = False  # the upstream may have got something of the request

    def begin(self, path: str, request: ForwardRequest, headers: Headers) -> AnswerHead:
        """Sends the request and returns the head of its answer. Waits.

        Raises UpstreamDown where nothing was sent, or the upstream was not ready; UpstreamBusy; UpstreamLost for one
        that did not answer what it was sent, or with a redirect; and Refused for a request that cannot be sent.
        """
        head = self.ask(path, request, headers)
        if head.status >= 300 and (refusal := refusal_of(head, int(time.time()))) is not None:
            raise refusal
        return head

    def ask(self, path: str, request: ForwardRequest, headers: Headers) -> AnswerHead:
        """Sends the request as `begin` does, and returns the answer whatever its status."""
        try:
            sent = request_head(request.method, path, self._connections.authority, headers, len(request.body))
        except ValueError as error:
            raise Refused(f"the request cannot be sent on: {error}") from None
        self._connection = connection = self._connections.take()
        self.is_sent = True
        try:
            deadline = time.monotonic() + self._limits.first_byte
            self._send(connection, sent, request.body)
            head = self._receive_head(connection, deadline)
            self._body = body_decoder(head, request.method)
        except TimedOut:
            raise self._late() from None
        except (BadAnswer, OSError) as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # of sending, and not the system's own
                raise self._late() from None
            raise UpstreamLost(f"the upstream broke off before it answered: {words_of(error)}") from None
        if head.status < 200:
            raise UpstreamLost(f"the upstream answered {head.status}, which is no end of an exchange")
        self._is_reusable = self._is_reusable and keeps_connection(head, self._body)
        return AnswerHead(status=head.status, headers=_passed_on(head))

    def _late(self) -> UpstreamSilent:
        return UpstreamSilent(f"the upstream did not answer within {self._limits.first_byte:g} s")

    def _send(self, connection: UpstreamConnection, head: bytes, body: bytes) -> None:
        try:
            if len(body) <= PIECE:
                connection.send(head + body, self._limits.first_byte)
            else:
                connection.send(head, self._limits.first_byte)
                connection.send(body, self._limits.first_byte)
        except (BrokenPipeError, ConnectionResetError):
            # An upstream may answer, and close, before it has read everything.
            self._is_reusable = False

    def _receive_head(self, connection: UpstreamConnection, deadline: float) -> ReceivedHead:
        """Waits for the whole head. Raises TimedOut at the deadline, however much of it has come by then."""
        self._head_reader = reader = HeadReader()
        # Until something has come, the connection's own timer will do, which is not set anew for each request.
        connection.wait(max(deadline - time.monotonic(), 0.0), self._has_begun)
        if self._head is None:
            with gevent.Timeout(max(deadline - time.monotonic(), 0.0), TimedOut()):
                connection.wait(None, self._take_head)
        self._head_reader = None
        self._unread = reader.rest
        assert self._head is not None
        return self._head

    def _has_begun(self) -> bool:
        """Reads what has come of the head, and returns whether that is anything. Never waits."""
        reader = self._head_reader
        assert reader is not None
        return self._take_head() or reader.n_bytes > 0

    def _take_head(self) -> bool:
        """Reads what has come of the head, and returns whether it is whole. Never waits."""
        connection, reader = self._connection, self._head_reader
        assert connection is not None
        assert reader is not None
        while self._head is None and (data := connection.receive()) is not None:
            if not data:
                raise BadAnswer("its connection has ended")
            self._head = reader.feed(data)
        return self._head is not None

    def pump(self, sink: PieceSink) -> bool:
        """Hands the pieces of the body to `sink` as they come, and returns whether that was the whole body.

        Waits; meanwhile `sink` is called in the hub, without the switches that waking a greenlet costs. Returns False
        when `sink` does, and after about PIECE bytes anyway: whoever receives much gives way to others before it calls
        again. Raises what `sink` raises, and UpstreamLost if the body ends early or stalls.
        """
        connection, body = self._connection, self._body
        assert connection is not None
        assert body is not None
        if self._turn > PIECE:
            gevent.sleep(0)
        self._turn = 0
        self._sink = sink
        try:
            if not self._take_body():
                connection.wait(self._limits.idle, self._take_body)
        except TimedOut:
            raise UpstreamSilent(f"the upstream sent nothing for {self._limits.idle:g} s") from None
        except (BadAnswer, OSError) as error:
            raise UpstreamLost(f"the upstream broke off in mid-answer: {words_of(error)}") from None
        finally:
            self._sink = None
        self._is_reusable = self._is_reusable and not body.has_more
        return body.is_finished

    def _take_body(self) -> bool:
        """Hands on what has come of the body, and returns whether this turn of the pump is over. Never waits."""
        connection, body, sink = self._connection, self._body, self._sink
        assert connection is not None
        assert body is not None
        assert sink is not None
        while not body.is_finished:
            if data := self._unread:
                self._unread = b""
                is_drained = False  # what came with the head may not be all there was
            else:
                received = connection.receive()
                if received is None:
                    return False
                data, is_drained = received, connection.is_drained
                if not data:
                    body.close()
                    return True
            piece = body.feed(data)
            self._turn += len(data)
            if (piece and not sink(piece)) or self._turn > PIECE:
                return True
            if is_drained and not body.is_finished:
                return False
        return True

    def pieces(self) -> Iterator[bytes]:
        """Yields the body as it comes. Waits; raises UpstreamLost if it ends early or stalls."""
        pieces: list[bytes] = []

        def keep(piece: bytes) -> bool:
            pieces.append(piece)
            return False

        is_whole = False
        while not is_whole:
            is_whole = self.pump(keep)
            yield from pieces
            pieces.clear()

    def close(self, is_whole: bool) -> None:
        """Gives the connection back if the answer was read to its end; closes it otherwise, which ends the call there.

        Twice is harmless.
        """
        connection, self._connection = self._connection, None
        if connection is not None and is_whole and self._is_reusable:
            self._connections.give_back(connection)
        elif connection is not None:
            connection.close()


def refusal_of(head: AnswerHead, now: float) -> CorosrvError | None:
    """Returns the error of an answer that says that the call did not run, or broke off; None for any other.

    `now`: Unix time.
    """
    status = head.status
    wait = next((value for name, value in head.headers if name.lower() == "retry-after"), None)
    seconds = retry_after(wait, now)
    if status == 429:
        return UpstreamBusy("every upstream that could serve the request is busy", seconds or SHORTEST_PAUSE)
    if status == 503:
        return UpstreamDown("the upstream takes no requests now", seconds)
    if status in (502, 504):
        return UpstreamLost(f"the upstream answered {status}")
    if is_redirect(status):
        return UpstreamLost(f"the upstream answered {status}, a redirect, which is not followed")
    return None


def is_redirect(status: int) -> bool:
    return 300 <= status < 400 and status != 304


def _passed_on(head: ReceivedHead) -> Headers:
    """Returns the headers of an answer that go on to the client."""
    own = _NOT_PASSED_ON.union(head.members("connection")) if "connection" in head.values else _NOT_PASSED_ON
    return tuple([field for field in head.fields if field[0].lower() not in own])


TIME_LIMIT = 2.0  # seconds that one answer may take
MAX_ANSWER = 4 << 20  # bytes


class Addressee(Protocol):
    """Stands for the upstream that is asked."""

    def path(self, path: str) -> str:
        """Returns the path of a request on this upstream."""

    def headers(self, headers: Headers = ()) -> Headers:
        """Returns the headers of a request to this upstream."""


def ask_shortly(upstream: Addressee, connections: UpstreamConnections, request: ForwardRequest) -> tuple[int, bytes]:
    """Returns the status and the body of the answer. Waits, TIME_LIMIT seconds at most.

    Raises CorosrvError: UpstreamSilent where no answer has come in time.
    """
    exchange = Exchange(connections, ExchangeLimits(TIME_LIMIT, TIME_LIMIT))
    body = bytearray()
    late = UpstreamSilent(f"it did not answer within {TIME_LIMIT:g} s")
    try:
        with gevent.Timeout(TIME_LIMIT, late):
            head = exchange.ask(upstream.path(request.path), request, upstream.headers(request.headers))
            for piece in exchange.pieces():
                body += piece
                if len(body) > MAX_ANSWER:
                    raise CorosrvError(f"its answer is longer than {MAX_ANSWER >> 20} MiB")
    except UpstreamSilent as error:
        if exchange.is_sent or connections.is_numeric:
            raise
        raise UpstreamDown(str(error)) from None  # perhaps its name was not found yet, which says nothing of it
    finally:
        exchange.close(is_whole=False)
    return head.status, bytes(body)
