"""Reads HTTP/1.1 answers: the head, and the body by its length, in chunks, or to the connection's end. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec

from corosrv.contracts.jobs.infer import Headers

MAX_HEAD = 65_536  # bytes of a head, with the interim answers before it
MAX_FIELDS = 100
_CONTINUE = 100

_END = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: [^\n]*)?\r?\n")
_FOLD = re.compile(r"\r?\n[ \t]+")
# Whole lines; one with another name, or with a line end of half its length in it, is no field.
_FIELD = re.compile(r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([^\r\n]*)\r?$", re.MULTILINE)


class BadAnswer(ValueError):
    """Tells that an upstream has sent what HTTP/1.1 does not call an answer."""


class ReceivedHead(msgspec.Struct, frozen=True):
    """Holds the head of an answer. `minor`: its version is HTTP/1.minor."""

    status: int
    minor: int
    fields: Headers
    values: Mapping[str, str]  # by the name in lower case; those of one name with commas between them

    def members(self, name: str) -> list[str]:
        """Returns the members of all fields of a name, which is in lower case, as those are."""
        value = self.values.get(name)
        if value is None:
            return []
        return [member for word in value.lower().split(",") if (member := word.strip())]


class HeadReader:
    """Takes an answer as it arrives until its head is there. Touches no socket."""

    def __init__(self) -> None:
        self._held = b""
        self._n_interim = 0  # bytes of interim answers
        self.n_bytes = 0  # that have come
        self.rest = b""  # what has come behind the head

    def feed(self, data: bytes) -> ReceivedHead | None:
        """Returns the head once all of it has come. Raises BadAnswer.

        `100 Continue` is skipped: nobody waits for it.
        """
        self._held += data
        self.n_bytes += len(data)
        while (end := _END.search(self._held)) is not None:
            head = parse_head(self._held[: end.end()])
            self._held = self._held[end.end() :]
            if head.status != _CONTINUE:
                self.rest, self._held = self._held, b""
                return head
            self._n_interim += end.end()
        if self._n_interim + len(self._held) > MAX_HEAD:
            raise BadAnswer(f"its head is longer than {MAX_HEAD} bytes")
        return None


def parse_head(data: bytes) -> ReceivedHead:
    """Parses a head with the empty line at its end. Raises BadAnswer. What is no field is left out."""
    text = data.decode("latin-1")
    status_line = _STATUS_LINE.match(text)
    if status_line is None:
        raise BadAnswer(f"{text[:40]!r} does not begin an answer of HTTP/1.1")
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    fields = tuple([(name, value.rstrip(" \t")) for name, value in _FIELD.findall(text, status_line.end())])
    if len(fields) > MAX_FIELDS:
        raise BadAnswer(f"it has more than {MAX_FIELDS} header fields")
    return received_head(int(status_line[2]), int(status_line[1]), fields)


def received_head(status: int, minor: int, fields: Headers) -> ReceivedHead:
    values: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        values[key] = f"{values[key]},{value}" if key in values else value
    return ReceivedHead(status, minor, fields, values)


MAX_LINE = 4096  # bytes of a chunk's size with its extensions, and of a trailer
MAX_TRAILERS = 65_536  # bytes of all trailers

_WHOLE_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class BadChunks(BadAnswer):
    """A body is not in chunks as HTTP defines them."""


class _ChunkPhase(Enum):
    SIZE = "size"
    DATA = "data"
    LINE_END = "line end"  # after the data of a chunk
    TRAILERS = "trailers"
    END = "end"


class ChunkDecoder:
    """Takes a body as it arrives and returns what it holds. Touches no socket.

    What arrives together is returned together: a burst of small chunks is one piece.
    """

    ends_connection = False

    def __init__(self) -> None:
        self.is_finished = False
        self._part = _ChunkPhase.SIZE
        self._left = 0  # bytes of the chunk that are still to come
        self._line = b""  # the beginning of a line whose end is still to come
        self._n_trailers = 0
        self.has_more = False  # bytes came after the end, which belong to no body

    def close(self) -> None:
        """Takes the end of the connection. Raises BadChunks if the body lacks something."""
        if not self.is_finished:
            raise BadChunks("it ended before its last chunk")

    def feed(self, data: bytes) -> bytes:
        """Returns the content of the next bytes of the body, which may be nothing. Raises BadChunks."""
        if self._part is _ChunkPhase.SIZE and not self._line and (chunk := _WHOLE_CHUNK.match(data)) is not None:
            # A chunk that came alone, as the events of a stream do. One of another length is looked into below.
            begin, length = chunk.end(), int(chunk[1], 16)
            if length and begin + length + 2 == len(data) and data.endswith(b"\r\n"):
                return data[begin:-2]
        if self._line:
            data, self._line = self._line + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end and self._part is not _ChunkPhase.END:
            if self._part is _ChunkPhase.DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._part = _ChunkPhase.LINE_END
                continue
            line_end = data.find(b"\n", position, position + MAX_LINE) + 1
            if not line_end:
                if end - position >= MAX_LINE:
                    raise BadChunks(f"a line of the chunked body is longer than {MAX_LINE} bytes")
                self._line = data[position:]
                break
            self._take_line(data[position:line_end])
            position = line_end
        self.has_more = self._part is _ChunkPhase.END and position < end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._part is _ChunkPhase.SIZE:
            self._take_size(line)
        elif self._part is _ChunkPhase.LINE_END:
            if line not in (b"\r\n", b"\n"):
                raise BadChunks("a chunk is longer than it said")
            self._part = _ChunkPhase.SIZE
        elif line in (b"\r\n", b"\n"):
            self._part = _ChunkPhase.END
            self.is_finished = True
        else:
            self._n_trailers += len(line)
            if self._n_trailers > MAX_TRAILERS:
                raise BadChunks(f"the trailers are longer than {MAX_TRAILERS} bytes")

    def _take_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise BadChunks(f"{line[:40]!r} is no size of a chunk")
        self._left = int(match[1], 16)
        self._part = _ChunkPhase.DATA if self._left else _ChunkPhase.TRAILERS


_LENGTH = re.compile(r"[0-9]{1,15}")
_WITHOUT_BODY = (204, 304)


class BodyDecoder(Protocol):
    """Takes a body as it arrives and returns what it holds. Touches no socket."""

    is_finished: bool  # the whole body has come
    has_more: bool  # bytes came after the end, which belong to no body
    ends_connection: bool  # its end is that of its connection

    def feed(self, data: bytes) -> bytes:
        """Returns the content of the next bytes, which may be nothing. Raises BadChunks."""

    def close(self) -> None:
        """Takes the end of the connection. Raises BadAnswer if the body lacks something."""


class LengthDecoder:
    """Takes a body of a known length."""

    ends_connection = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.has_more = False
        self.is_finished = length == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            self.has_more = True
            data = data[: self._left]
        self._left -= len(data)
        self.is_finished = self._left == 0
        return data

    def close(self) -> None:
        if self._left:
            raise BadAnswer("it is shorter than it said")


class ConnectionDecoder:
    """Takes a body that ends where its connection does."""

    has_more = False
    ends_connection = True

    def __init__(self) -> None:
        self.is_finished = False

    def feed(self, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.is_finished = True


def body_decoder(head: ReceivedHead, method: str) -> BodyDecoder:
    """Returns what takes the body of the answer to a request with this method. Raises BadAnswer."""
    if method == "HEAD" or head.status in _WITHOUT_BODY:
        return LengthDecoder(0)
    if "transfer-encoding" in head.values and (codings := head.members("transfer-encoding")):
        if codings == ["chunked"]:
            return ChunkDecoder()
        raise BadAnswer(f"its body is coded as {codings[-1][:40]!r}, which was not asked for")
    length = head.values.get("content-length", "")
    if not _LENGTH.fullmatch(length):
        lengths = set(head.members("content-length"))
        if not lengths:
            return ConnectionDecoder()
        length = lengths.pop()
        if lengths or not _LENGTH.fullmatch(length):
            raise BadAnswer("its Content-Length is no number, or several")
    return LengthDecoder(int(length))


def keeps_connection(head: ReceivedHead, body: BodyDecoder) -> bool:
    """Tells whether another request may follow on the connection."""
    if body.ends_connection:
        return False
    if "connection" not in head.values:
        return head.minor > 0
    options = head.members("connection")
    return "close" not in options if head.minor else "keep-alive" in options
