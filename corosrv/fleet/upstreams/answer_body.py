"""Finds where the body of an answer ends, by the fields of its head."""

from __future__ import annotations

import re
from typing import Protocol

from corosrv.fleet.upstreams.answer_head import BadAnswer, ReceivedHead
from corosrv.fleet.upstreams.chunks import ChunkDecoder

_LENGTH = re.compile(r"[0-9]{1,15}")
_WITHOUT_BODY = (204, 304)


class BodyDecoder(Protocol):
    """Takes a body as it arrives and returns what it holds. Touches no socket."""

    @property
    def is_finished(self) -> bool:
        """Tells whether the whole body has come."""

    has_more: bool  # bytes came after the end, which belong to no body

    def feed(self, data: bytes) -> bytes:
        """Returns the content of the next bytes, which may be nothing. Raises BadChunks."""

    def close(self) -> None:
        """Takes the end of the connection. Raises BadAnswer if the body lacks something."""


class LengthDecoder(BodyDecoder):
    """Takes a body of a known length."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.has_more = False

    @property
    def is_finished(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            self.has_more = True
            data = data[: self._left]
        self._left -= len(data)
        return data

    def close(self) -> None:
        if self._left:
            raise BadAnswer("it is shorter than it said")


class ConnectionDecoder(BodyDecoder):
    """Takes a body that ends where its connection does."""

    has_more = False

    def __init__(self) -> None:
        self._is_closed = False

    @property
    def is_finished(self) -> bool:
        return self._is_closed

    def feed(self, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self._is_closed = True


def body_decoder(head: ReceivedHead, method: str) -> BodyDecoder:
    """Returns what takes the body of the answer to a request with this method. Raises BadAnswer."""
    if method == "HEAD" or head.status in _WITHOUT_BODY:
        return LengthDecoder(0)
    codings = head.members("transfer-encoding")
    if codings == ["chunked"]:
        return ChunkDecoder()
    if codings:
        raise BadAnswer(f"its body is coded as {codings[-1][:40]!r}, which was not asked for")
    lengths = set(head.members("content-length"))
    if not lengths:
        return ConnectionDecoder()
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise BadAnswer("its Content-Length is no number, or several")
    return LengthDecoder(int(length))


def keeps_connection(head: ReceivedHead, body: BodyDecoder) -> bool:
    """Tells whether another request may follow on the connection."""
    if isinstance(body, ConnectionDecoder):
        return False
    options = head.members("connection")
    return "close" not in options if head.minor else "keep-alive" in options
