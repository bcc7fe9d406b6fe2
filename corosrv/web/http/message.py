"""Changes gunicorn's requests and answers: when `100 Continue` is sent, when a connection ends, how streams are sent.

The pieces of a stream go straight through gunicorn's socket, where that is what gunicorn would do itself. A piece that
goes the ordinary way costs, besides the send, a getsockopt, five calls in Python and two switches of greenlets; at
thousands of pieces a second that is a third of the front's time.
"""

from __future__ import annotations

import _socket
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import gevent.socket
from gunicorn.http.body import ChunkedReader, EOFReader, LengthReader
from gunicorn.http.errors import InvalidChunkSize, UnsupportedTransferCoding
from gunicorn.http.message import Request, _ip_in_allow_list
from gunicorn.http.wsgi import Response, WSGIErrorsWrapper
from gunicorn.util import http_date

from corosrv.web.http.listener import PatientSocket

# So much of a body that nobody wanted is read and forgotten, for the sake of the requests behind it.
MAX_FORGOTTEN = 65_536
_MAX_CHUNK = 2**31
_SHORT = 65_536  # bytes of a body
# The status for a client that left before its answer; what it had sent ahead is not answered either.
CLIENT_GONE = 499
LAST_CHUNK = b"0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# A head as most clients send it: of what gunicorn takes as well, what needs none of its decisions. Nothing is decoded,
# folded or left out in it, and the bytes that a field may have are those of words and addresses.
_PLAIN_HEAD = re.compile(
    rb"(GET|POST) (/(?:[A-Za-z0-9_.~-][A-Za-z0-9_.~/-]*)?) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9-]+:[ \t]*(?:[\x21-\x7e][\x20-\x7e]*)?\r\n)+)\r\n"
)
_PLAIN_FIELD = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n")


class ClientRequest(Request):  # type: ignore[misc]
    """gunicorn's request, which parses a plain head in one go.

    It does not read its client's address again to learn whether it is a proxy's.
    """

    def parse(self, unreader: Any) -> bytes:
        """Returns what has come behind the head. Waits for the head. Raises what gunicorn's own does."""
        if self.cfg.proxy_protocol == "off":
            if not (data := unreader.read()):
                raise StopIteration
            if (rest := self._parse_plain(data)) is not None:
                return rest
            unreader.unread(data)
        behind: bytes = super().parse(unreader)
        return behind

    def _parse_plain(self, data: bytes) -> bytes | None:
        """Returns what is behind a plain head; None, with nothing changed, if it is none, or is not whole."""
        head = _PLAIN_HEAD.match(data)
        if (
            head is None
            or head.end() > self.limit_request_field_size
            or head.start(3) > (self.limit_request_line or 8190)
        ):
            return None
        headers = [(name.upper(), value.rstrip(" ")) for name, value in _PLAIN_FIELD.findall(head[3].decode("ascii"))]
        names = {name for name, _ in headers}
        if len(headers) > self.limit_request_fields or len(names) < len(headers) or "EXPECT" in names:
            return None
        if not names.isdisjoint(self.cfg.secure_scheme_headers):
            return None
        self.method, self.uri = head[1].decode("ascii"), head[2].decode("ascii")
        self.path, self.query, self.fragment, self.version = self.uri, "", "", (1, 1)
        self.headers = headers
        return data[head.end() :]

    def _peer_is_trusted_proxy(self) -> bool:
        if not isinstance(self.peer_addr, tuple):
            return True
        return _is_trusted_proxy(self.peer_addr[0], self.cfg)


@lru_cache(maxsize=1024)
def _is_trusted_proxy(address: str, cfg: Any) -> bool:
    return bool(_ip_in_allow_list(address, cfg.forwarded_allow_ips, cfg.forwarded_allow_networks()))


class LateErrors:
    """Serves as the `wsgi.errors` of a request: it looks for gunicorn's error streams once something is written.

    gunicorn looks at each request, and asks logging for its logger under a lock.
    """

    __slots__ = ("_cfg",)

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg

    def write(self, text: str) -> None:
        WSGIErrorsWrapper(self._cfg).write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Does nothing: what is written is flushed."""


class BoundedChunks(ChunkedReader):  # type: ignore[misc]
    """gunicorn's reader of chunked bodies; a chunk that nobody could ever take is refused when it is announced."""

    def parse_chunk_size(self, unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        size, remainder = super().parse_chunk_size(unreader, data)
        if size > _MAX_CHUNK:
            raise InvalidChunkSize(b"too large")
        return size, remainder


class PromptLengthReader(LengthReader):  # type: ignore[misc]
    """Reads a body of a known length for gunicorn: it gives what has come, and does not gather it first."""

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes; none at the end. Waits for the first of them."""
        size = min(size, self.length)
        if size == 0:
            return b""
        data: bytes = self.unreader.read(read_ahead=size)
        if len(data) > size:  # the next request begins in it
            self.unreader.unread(data[size:])
            data = data[:size]
        self.length -= len(data)
        return data


class AwaitedBody:
    """Reads a body that the client sends only after `100 Continue`, which the first read sends."""

    def __init__(self, reader: Any, socket: Any) -> None:
        self._reader = reader
        self._socket = socket
        self.is_asked_for = False

    def read(self, size: int) -> bytes:
        if not self.is_asked_for:
            self.is_asked_for = True
            self._socket.sendall(_CONTINUE)
        data: bytes = self._reader.read(size)
        return data

    @property
    def length(self) -> int | None:
        return getattr(self._reader, "length", None)

    @property
    def parser(self) -> Any:
        return getattr(self._reader, "parser", None)


def prepare(request: Request, socket: Any) -> None:
    """Gives a request that was just read the readers above. gunicorn would send 100 before anybody looked at it.

    Raises UnsupportedTransferCoding for a coding besides chunks, which gunicorn passes on as it comes.
    """
    for name, value in request.headers:
        if name == "CONNECTION" and value != "keep-alive" and "close" in _members(value):
            request.force_close()  # gunicorn looks for it alone
        if name == "TRANSFER-ENCODING" and _members(value) != ["chunked"]:
            raise UnsupportedTransferCoding(value)
    body = request.body
    if isinstance(body.reader, ChunkedReader):
        body.reader = BoundedChunks(request, request.unreader)
    elif isinstance(body.reader, LengthReader):
        body.reader = PromptLengthReader(request.unreader, body.reader.length)
    if request._expected_100_continue:
        request._expected_100_continue = False
        body.reader = AwaitedBody(body.reader, socket)


def _members(value: str) -> list[str]:
    """Splits a header field that is a list, in lower case."""
    return [member.strip(" \t").lower() for member in value.split(",")]


def is_read_out(request: Request) -> bool:
    """Returns whether the whole body was read, as far as that is known without reading on."""
    body = request.body
    return isinstance(body.reader, LengthReader) and body.reader.length == 0 and not body.buf.tell()


def is_all_there(request: Request, n_buffered: int) -> bool:
    """Returns whether the whole body, of a known length, is among so many bytes that have come behind the head."""
    reader = request.body.reader
    return isinstance(reader, PromptLengthReader) and bool(reader.length <= n_buffered)


def is_worth_reading_on(request: Request) -> bool:
    """Returns whether the rest of the body is short enough to skip, so that the next request can be read behind it."""
    if is_read_out(request):
        return True
    body = request.body
    reader = body.reader
    if body.failed:
        return False
    if isinstance(reader, AwaitedBody) and not reader.is_asked_for:
        return False  # nobody knows whether the client will send it
    if isinstance(reader, (LengthReader, AwaitedBody)) and reader.length is not None:
        return bool(reader.length <= MAX_FORGOTTEN)
    return not isinstance(reader, EOFReader) and reader.parser is None


class HttpResponse(Response):  # type: ignore[misc]
    """gunicorn's answer; closes the connection too when the client left or the unread rest of its body is long."""

    sock: Any
    is_ended = False  # the last chunk was sent with the last piece
    is_counted = False  # `sent` has to say at the end how long the body was
    is_cut_off = False  # a bug has ended the body before its end
    _said_close: bool | None = None  # in the head

    def write(self, arg: bytes) -> None:
        """Sends a piece of the body; a short one goes with the headers, which would wake the client for nothing.

        Raises TimeoutError for a client that accepts nothing.
        """
        n_bytes = len(arg)
        is_whole = self.response_length == n_bytes and self.req.method != "HEAD" and self.status_code != 304
        if not self.headers_sent and n_bytes <= _SHORT and (is_whole or (self.chunked and arg)):
            self.sent = n_bytes
            self.sock.sendall(self._take_head() + (b"%X\r\n%b\r\n" % (len(arg), arg) if self.chunked else arg))
            return
        # Each piece has the socket's time-out for itself: who is slow is waited for, who is gone is not.
        for begin in range(0, n_bytes or 1, _SHORT):  # an empty piece sends the head
            super().write(arg[begin : begin + _SHORT])

    def close(self) -> None:
        if not self.is_ended:
            super().close()

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.sock.sendall(self._take_head())

    def _take_head(self) -> bytes:
        """Returns the status line and the header fields, which count as sent from then on."""
        self.headers_sent = True
        fields = [f"{name}: {value}\r\n" for name, value in self.headers]
        return "".join((*self.default_headers(), *fields, "\r\n")).encode("latin-1")

    def default_headers(self) -> list[str]:
        """Returns the status line and gunicorn's own fields, of which the date is written once a second."""
        self._said_close = self.should_close()
        connection = "upgrade" if self.upgrade else "close" if self._said_close else "keep-alive"
        major, minor = self.req.version
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\n",
            f"Server: {self.version}\r\n",
            f"Date: {_date(int(time.time()))}\r\n",
            f"Connection: {connection}\r\n",
        ]
        return [*lines, "Transfer-Encoding: chunked\r\n"] if self.chunked else lines

    def should_close(self) -> bool:
        if self.headers_sent and self._said_close is not None:  # by then the rest is known
            return self._said_close or self.must_close or not is_worth_reading_on(self.req)
        has_left = self.status is not None and self.status_code == CLIENT_GONE
        return has_left or bool(super().should_close()) or not is_worth_reading_on(self.req)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return str(http_date(second))


class UnloggedResponse(HttpResponse):
    """A response that is in no log: once its head is sent, it forgets what only a log would read.

    Thousands of streams wait at once, and each would keep a kilobyte of header fields to its end.
    """

    def _take_head(self) -> bytes:
        head = super()._take_head()
        self.headers = ()
        self.forget_request()
        return head

    def forget_request(self) -> None:
        """Forgets what the request said, but for how its connection goes on. Call it when the application has it."""
        request = self.req
        request.headers = [(name, value) for name, value in request.headers if name == "CONNECTION"]
        request.uri = request.path = request.query = request.fragment = ""


class DirectSender:
    """Frames pieces of a chunked body whose headers were sent.

    The last piece has the end of the body with it: a send of its own would wake the client once more.
    """

    __slots__ = ("_answer", "_raw", "_send", "_unsent")

    def __init__(self, answer: HttpResponse) -> None:
        self._answer = answer
        self._send = _socket.socket.send
        self._raw = answer.sock._sock
        self._unsent = b""

    def send(self, piece: bytes, *, is_last: bool = False) -> bool:
        """Sends one piece, not empty. Never waits; False when the client is slow, and flush() has to send the rest."""
        chunk = b"%X\r\n%b\r\n" % (len(piece), piece)
        if is_last:
            chunk += LAST_CHUNK
            self._answer.is_ended = True
        try:
            n_sent = self._send(self._raw, chunk)
        except BlockingIOError:
            n_sent = 0
        if n_sent == len(chunk):
            return True
        self._unsent = chunk[n_sent:]
        return False

    def flush(self) -> None:
        """Sends what is left of the last piece; waits for a slow client, at most the socket's time-out."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._answer.sock.sendall(unsent)


class CountingSender(DirectSender):
    """A direct sender that counts the bytes of the body."""

    __slots__ = ()

    def send(self, piece: bytes, *, is_last: bool = False) -> bool:
        self._answer.sent += len(piece)
        return super().send(piece, is_last=is_last)


def direct_sender(start_response: Any) -> DirectSender | None:
    """Returns a sender for the answer that `start_response` has begun, or None where pieces must go the ordinary way.

    Only that of this server's own answers will do: a wrapped one belongs to a middleware that may change the body.
    """
    answer = getattr(start_response, "__self__", None)
    if not isinstance(answer, HttpResponse) or not answer.chunked:
        return None
    # Exactly these classes: TLS has one of its own, and other workers have blocking sockets.
    if type(answer.sock) not in (PatientSocket, gevent.socket.socket):
        return None
    return CountingSender(answer) if answer.is_counted else DirectSender(answer)
