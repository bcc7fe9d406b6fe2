"""Runs one HTTP exchange with an upstream: a request as it was sent, and its answer piece by piece."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse

import gevent

from corosrv.errors import CorosrvError, Refused
from corosrv.jobs.forward import AnswerHead, ForwardRequest, Headers
from corosrv.outgoing.retry_after import retry_after
from corosrv.upstreams.chunks import BadChunks, ChunkDecoder
from corosrv.upstreams.connections import UpstreamConnections
from corosrv.upstreams.failures import UpstreamBusy, UpstreamDown, UpstreamLost, words_of

PIECE = 64 << 10  # bytes
SHORTEST_PAUSE = 1.0  # seconds, where an upstream that is busy names none

_OF_ONE_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "content-length",
})  # fmt: skip
_NOT_SENT = _OF_ONE_HOP | {"host", "expect"}  # made anew
_NOT_PASSED_ON = _OF_ONE_HOP | {"date", "server", "set-cookie"}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None
        self._is_reusable = True  # the connection, once the answer was read to its end
        self.is_sent = False  # the upstream may have got something of the request

    def begin(self, path: str, request: ForwardRequest, headers: Headers) -> AnswerHead:
        """Sends the request and returns the head of its answer. Waits.

        Raises UpstreamDown where nothing was sent, or the upstream was not ready; UpstreamBusy; UpstreamLost for one
        that did not answer what it was sent, or with a redirect; and Refused for a request that cannot be sent.
        """
        head = self.ask(path, request, headers)
        if (refusal := refusal_of(head, int(time.time()))) is not None:
            raise refusal
        return head

    def ask(self, path: str, request: ForwardRequest, headers: Headers) -> AnswerHead:
        """Does what `begin` does, and returns any answer."""
        self._connection = connection = self._connections.take()
        # For each write and read; the one below is for all of them, against an answer that drips.
        connection.sock.settimeout(self._limits.first_byte)
        late = UpstreamLost(f"the upstream did not answer within {self._limits.first_byte:g} s")
        self.is_sent = True
        try:
            with gevent.Timeout(self._limits.first_byte, late):
                self._send(connection, path, request, headers)
                # The connection forgets its socket if the answer ends it.
                sock = connection.sock
                self._response = response = connection.getresponse()
        except TimeoutError:
            raise late from None
        except (HTTPException, OSError) as error:
            raise UpstreamLost(f"the upstream broke off before it answered: {words_of(error)}") from None
        if response.status < 200:
            raise UpstreamLost(f"the upstream answered {response.status}, which is no end of an exchange")
        sock.settimeout(self._limits.idle)
        self._is_reusable = self._is_reusable and not response.will_close
        return AnswerHead(status=response.status, headers=_passed_on(response))

    def _send(self, connection: HTTPConnection, path: str, request: ForwardRequest, headers: Headers) -> None:
        try:
            connection.putrequest(request.method, path, skip_accept_encoding=True)
            for name, value in headers:
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{name[:60]!r} is no name of a field")
                if name.lower() not in _NOT_SENT:
                    connection.putheader(name, value)
            if request.body or request.method not in ("GET", "HEAD"):
                connection.putheader("Content-Length", str(len(request.body)))
        except (HTTPException, ValueError) as error:
            raise Refused(f"the request cannot be sent on: {error}") from None
        try:
            connection.endheaders(request.body or None)
        except (BrokenPipeError, ConnectionResetError):
            # An upstream may answer, and close, before it has read everything.
            self._is_reusable = False

    def pieces(self) -> Iterator[bytes]:
        """Yields the body as it comes. Waits; raises UpstreamLost if it ends early or stalls."""
        response = self._response
        assert response is not None
        try:
            if response.chunked:
                yield from self._chunked_pieces(response)
            else:
                yield from self._plain_pieces(response)
        except TimeoutError:
            raise UpstreamLost(f"the upstream sent nothing for {self._limits.idle:g} s") from None
        except (HTTPException, OSError, BadChunks) as error:
            raise UpstreamLost(f"the upstream broke off in mid-answer: {words_of(error)}") from None

    def _chunked_pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        decoder = ChunkDecoder()
        while not decoder.is_finished:
            data = response.fp.read1(PIECE)
            if not data:
                raise UpstreamLost("the upstream's answer ended before its last chunk")
            if piece := decoder.feed(data):
                yield piece
        self._is_reusable = self._is_reusable and not decoder.has_more

    def _plain_pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        left = response.length  # None: until the connection ends
        while left != 0 and response.fp is not None:
            piece = response.fp.read1(PIECE if left is None else min(PIECE, left))
            if not piece:
                if left is None:
                    break
                raise UpstreamLost("the upstream's answer is shorter than it said")
            if left is not None:
                left -= len(piece)
            yield piece

    def close(self, is_whole: bool) -> None:
        """Gives the connection back if the answer was read to its end; closes it otherwise, which ends the call there.

        Twice is harmless.
        """
        connection, self._connection = self._connection, None
        response, self._response = self._response, None
        if response is not None:
            response.close()
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


def _passed_on(response: HTTPResponse) -> Headers:
    """Returns the headers of an answer that go on to the client."""
    fields = response.getheaders()
    own = {name.strip().lower() for name in response.getheader("Connection", "").split(",")} | _NOT_PASSED_ON
    return tuple(
        (name, " ".join(value.split()) if "\n" in value or "\r" in value else value)
        for name, value in fields
        if name.lower() not in own and _NAME.fullmatch(name)
    )
