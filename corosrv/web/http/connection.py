"""Reads one client's requests in order, each in time, and closes its connection without losing an answer.

`Pace` limits how slowly a client may send: the deadline comes nearer for those who send too little. Bytes that never
become a request, so that no route and no protocol sees them, are answered by `refusal`.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import gevent
import msgspec
from gunicorn.http import errors
from gunicorn.http.errors import InvalidRequestLine, LimitRequestHeaders, NoMoreData
from gunicorn.http.message import Request
from gunicorn.http.parser import Parser
from gunicorn.http.unreader import SocketUnreader

from corosrv.base.waits import awake_clock
from corosrv.contracts.jobs.job import new_id
from corosrv.web.http import message

# Of all fields together, with the request line. gunicorn bounds each field and their number.
MAX_HEAD_BYTES = 8192 + 65_536
# Reading what is there already never waits; after that long the others get their turn.
_TURN = 0.01  # seconds


def say_goodbye(client: ssl.SSLSocket) -> None:
    """Sends the record that ends a TLS connection, without which an answer looks as if it was cut. Never waits."""
    client.settimeout(0)
    with suppress(OSError, ValueError):  # it would wait for the client's own
        client.unwrap()


def let_others() -> None:
    """Lets all other greenlets run, also those whose sockets have just turned readable, which sleep(0) does not."""
    gevent.sleep(1e-6)


class TooSlow(TimeoutError):
    """The client sends more slowly than it has to.

    No CorosrvError: it passes through gunicorn's readers, which take it for the time-out of a socket, and is answered
    here where no protocol has seen the request yet.
    """


@dataclass(slots=True)
class Pace:
    """A client's deadline: everything within `limit` seconds, and after `grace` at least `rate` bytes a second.

    Its moments are those of the awake clock: what this process slept through is not counted.
    """

    began: float
    limit: float  # seconds
    grace: float = float("inf")  # seconds
    rate: float = 1.0
    n_read: int = 0

    def remaining(self, now: float) -> float:
        """Returns the seconds until the deadline, which every byte that comes moves."""
        return min(self.limit, self.grace + self.n_read / self.rate) - (now - self.began)


class PacedUnreader(SocketUnreader):  # type: ignore[misc]
    """gunicorn's reading end of one connection, with a pace to keep and turns to take. Belongs to one greenlet."""

    # gunicorn would receive a mebibyte at once, and copy what is left of it for each piece that is taken.
    max_body_chunk = 128 << 10  # bytes

    def __init__(self, source: Any, write_timeout: float | None = None) -> None:
        """`write_timeout`: what the socket has while nobody reads."""
        super().__init__(source)
        self._write_timeout = write_timeout
        self._pace: Pace | None = None
        self._behind_line: Pace | None = None  # takes over when the request line has come
        self._n_left = sys.maxsize  # bytes that may still come
        self._turn_began = time.monotonic()

    def begin_head(self, line: Pace, head: Pace) -> None:
        """Begins to read a request line and fields, with the paces of the line and of the whole head."""
        self._pace, self._behind_line = line, head
        self._n_left = MAX_HEAD_BYTES
        self._look_for_line(self.buf.getvalue())

    def begin_request(self, limits: ClientLimits, now: float) -> None:
        """Begins to read a request, as begin_head does; where its whole head has come, there is no pace to keep."""
        if self.buf.getvalue().find(b"\r\n\r\n") > 0:  # not at the front, where other protocols may have it
            self._pace = self._behind_line = None
            self._n_left = MAX_HEAD_BYTES
        else:
            self.begin_head(Pace(now, min(_FIRST_LINE, limits.head)), Pace(now, limits.head))

    def begin_body(self, pace: Pace) -> None:
        """Begins to read a body. Its size is not limited here: whoever reads it knows how much is wanted."""
        self._pace, self._behind_line = pace, None
        self._n_left = sys.maxsize

    def _look_for_line(self, data: bytes) -> None:
        if self._behind_line is not None and b"\n" in data:
            self._pace, self._behind_line = self._behind_line, None

    @property
    def n_buffered(self) -> int:
        """The bytes that have come and that nobody has taken."""
        return int(self.buf.getbuffer().nbytes)

    @property
    def has_buffered(self) -> bool:
        """True when a next request, or its beginning, is in the buffer."""
        return bool(self.buf.getbuffer().nbytes)

    def give_way(self) -> None:
        """Lets others run if this turn was long enough: a client that sends ahead always has more. May wait."""
        if time.monotonic() - self._turn_began > _TURN:
            let_others()
            self._turn_began = time.monotonic()

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Reads what comes next; waits for it. Raises TooSlow, and LimitRequestHeaders for a head without end."""
        self.give_way()
        if self._pace is not None:
            # With 0 for a client whose time is over it takes what is there and does not wait: whoever has sent
            # everything is not too slow, however late this process reads it.
            self.sock.settimeout(max(0.0, self._pace.remaining(awake_clock.now())))
        try:
            data: bytes = super().chunk(size_hint)
        except (TimeoutError, BlockingIOError):
            raise TooSlow from None
        finally:
            self.sock.settimeout(self._write_timeout)
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self._look_for_line(data)
        if self._pace is not None:
            self._pace.n_read += len(data)
        self._n_left -= len(data)
        if self._n_left < 0:
            raise LimitRequestHeaders("all fields together")


class Overloaded(Exception):
    """The limit of connected clients is reached.

    No CorosrvError: it is raised and answered before there is a request, which every protocol's errors belong to.
    """


class Refusal(NamedTuple):
    """The answer to such a client. It never quotes what the client sent: that may be a secret, or a script."""

    status: HTTPStatus
    message: str
    type: str = "invalid_request_error"
    code: str | None = "invalid_http"


# The first class that matches decides, so that the narrower stand above the wider.
_REFUSALS: tuple[tuple[type[BaseException], Refusal], ...] = (
    (TooSlow, Refusal(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time", code="request_timeout")),
    (errors.LimitRequestLine, Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")),
    (
        errors.LimitRequestHeaders,
        Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the header fields are too many or too long"),
    ),
    (
        errors.UnsupportedTransferCoding,
        Refusal(HTTPStatus.NOT_IMPLEMENTED, "unknown Transfer-Encoding: only chunked is supported"),
    ),
    (
        errors.InvalidHTTPVersion,
        Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "unsupported HTTP version: use HTTP/1.0 or 1.1"),
    ),
    (
        errors.ExpectationFailed,
        Refusal(HTTPStatus.EXPECTATION_FAILED, "unsupported Expect header: only 100-continue is supported"),
    ),
    (
        errors.ForbiddenProxyRequest,
        Refusal(HTTPStatus.FORBIDDEN, "the PROXY protocol is not allowed from this address"),
    ),
    (
        errors.InvalidResponseHeader,
        Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None),
    ),
    (errors.ParseException, Refusal(HTTPStatus.BAD_REQUEST, "the request is not well-formed HTTP/1.1")),
    (Overloaded, Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients are connected", "unavailable_error", None)),
    (BaseException, Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None)),
)


def refusal(error: BaseException) -> Refusal:
    return next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))


def answer(refusal: Refusal) -> bytes:
    """Makes the whole answer, after which the connection ends."""
    members = {"message": refusal.message, "type": refusal.type, "param": None, "code": refusal.code}
    content = msgspec.json.encode({"error": members})
    lines = [
        f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
        f"X-Request-Id: {new_id('req_')}",
    ]
    if refusal.status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


_FIRST_LINE = 5.0  # seconds
_FIRST_PATIENCE = 1.0  # seconds behind its beginning in which a connection's first request may be on its way
_BODY_GRACE = 10.0  # seconds in which a body may be slower than it has to be
_FORGET_SECONDS = 2.0  # for what is left of a body, and for what a refused client still sends
_BEGINNINGS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&'*+-.^_`|~0123456789\r")


@dataclass(frozen=True)
class ClientLimits:
    """The seconds in which a client has to send a request and to accept a piece of an answer; bytes a second."""

    head: float = 10.0
    body: float = 30.0
    body_rate: float = 1024.0
    write: float = 30.0


class _ClientParser(Parser):  # type: ignore[misc]
    mesg_class = message.ClientRequest


class Connection:
    """Reads requests from one client's socket, and closes it. Belongs to one greenlet."""

    __slots__ = ("_first_by", "_idle_seconds", "_limits", "_parser", "_socket", "_unreader", "is_idle")

    def __init__(self, cfg: Any, client: Any, address: Any, limits: ClientLimits, read_ahead: bytes = b"") -> None:
        """`read_ahead`: what another process has read of it."""
        self._socket = client
        self._limits = limits
        self._idle_seconds = float(cfg.keepalive)
        self._parser = _ClientParser(cfg, client, address)
        self._unreader = self._parser.unreader = PacedUnreader(client, limits.write)
        self._unreader.unread(read_ahead)
        client.settimeout(limits.write)
        self.is_idle = False
        self._first_by = time.monotonic() + _FIRST_PATIENCE

    def requests(self) -> Iterator[Request]:
        """Yields one request after the other, each once the last is answered. Ends when the client leaves or should.

        Waits. Raises ParseException or TooSlow for a request that cannot be read; the connection is useless then.
        """
        while self._wait():
            self._unreader.begin_request(self._limits, awake_clock.now())
            request = self._next()
            if request is None:
                return
            message.prepare(request, self._socket)
            if not message.is_all_there(request, self._unreader.n_buffered):
                self._unreader.begin_body(
                    Pace(awake_clock.now(), self._limits.body, _BODY_GRACE, self._limits.body_rate)
                )
            yield request
            if not self._forget_body():
                return

    def _wait(self) -> bool:
        """Waits for the beginning of a request; False when none comes in time. Raises InvalidRequestLine."""
        if self._unreader.has_buffered:
            self._unreader.give_way()
            return True
        self.is_idle = True
        self._socket.settimeout(self._idle_seconds or _FIRST_LINE)
        try:
            data = self._socket.recv(8192)
        except OSError:
            return False
        finally:
            self.is_idle = False
            self._socket.settimeout(self._limits.write)
            self._first_by = 0.0
        if data and data[0] not in _BEGINNINGS:
            raise InvalidRequestLine("")
        self._unreader.unread(data)
        return bool(data)

    def _next(self) -> Request | None:
        with suppress(StopIteration, NoMoreData):  # it left, or said that there is no more
            return next(self._parser)
        return None

    def _forget_body(self) -> bool:
        """Skips the unread rest of the last body; False where the next request cannot be found behind it. Waits."""
        request = self._parser.mesg
        if message.is_read_out(request):
            self._parser.mesg = None  # gunicorn would look for the rest of its body once more
            return not request.should_close()
        if not message.is_worth_reading_on(request):
            return False
        with suppress(Exception):  # a fault in bytes that nobody wanted only ends the connection
            deadline = time.monotonic() + _FORGET_SECONDS
            return bool(self._parser.finish_body(deadline, message.MAX_FORGOTTEN + 1))
        return False

    def refuse(self, error: BaseException) -> None:
        """Answers with the error that ends the connection. Waits; a client that left is no error."""
        with suppress(OSError):
            self._socket.settimeout(_FORGET_SECONDS)
            self._socket.sendall(answer(refusal(error)))

    def hang_up(self) -> None:
        """Closes the connection if it waits for a request, and its first one is not on its way. Never waits."""
        if self.is_idle and time.monotonic() >= self._first_by:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Resets the connection at once; the system forgets what the client has not accepted. Never waits."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self, patience: float = _FORGET_SECONDS) -> None:
        """Closes the connection; waits up to `patience` seconds.

        What the client still sends is read for that long: to close on it would destroy the last answer.
        """
        with suppress(OSError):  # also when it is closed
            if isinstance(self._socket, ssl.SSLSocket):
                say_goodbye(self._socket)
            self._socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + patience
            while (remaining := deadline - time.monotonic()) > 0:
                self._socket.settimeout(remaining)
                if not self._socket.recv(65_536):
                    break
                let_others()  # a fast client always has more
        self._socket.close()
