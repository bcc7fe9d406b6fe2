"""Decodes bodies of HTTP/1.1 that come in chunks."""

from __future__ import annotations

import re
from enum import Enum

from corosrv.fleet.upstreams.answer_head import BadAnswer

MAX_LINE = 4096  # bytes of a chunk's size with its extensions, and of a trailer
MAX_TRAILERS = 65_536  # bytes of all trailers

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class BadChunks(BadAnswer):
    """A body is not in chunks as HTTP defines them."""


class _Part(Enum):
    SIZE = "size"
    DATA = "data"
    LINE_END = "line end"  # after the data of a chunk
    TRAILERS = "trailers"
    END = "end"


class ChunkDecoder:
    """Takes a body as it arrives and returns what it holds. Touches no socket.

    What arrives together is returned together: a burst of small chunks is one piece.
    """

    def __init__(self) -> None:
        self._part = _Part.SIZE
        self._left = 0  # bytes of the chunk that are still to come
        self._line = b""  # the beginning of a line whose end is still to come
        self._n_trailers = 0
        self.has_more = False  # bytes came after the end, which belong to no body

    @property
    def is_finished(self) -> bool:
        return self._part is _Part.END

    def close(self) -> None:
        """Takes the end of the connection. Raises BadChunks if the body lacks something."""
        if not self.is_finished:
            raise BadChunks("it ended before its last chunk")

    def feed(self, data: bytes) -> bytes:
        """Returns the content of the next bytes of the body, which may be nothing. Raises BadChunks."""
        if self._line:
            data, self._line = self._line + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end and self._part is not _Part.END:
            if self._part is _Part.DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._part = _Part.LINE_END
                continue
            line_end = data.find(b"\n", position, position + MAX_LINE) + 1
            if not line_end:
                if end - position >= MAX_LINE:
                    raise BadChunks(f"a line of the chunked body is longer than {MAX_LINE} bytes")
                self._line = data[position:]
                break
            self._take_line(data[position:line_end])
            position = line_end
        self.has_more = self._part is _Part.END and position < end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._part is _Part.SIZE:
            self._take_size(line)
        elif self._part is _Part.LINE_END:
            if line not in (b"\r\n", b"\n"):
                raise BadChunks("a chunk is longer than it said")
            self._part = _Part.SIZE
        elif line in (b"\r\n", b"\n"):
            self._part = _Part.END
        else:
            self._n_trailers += len(line)
            if self._n_trailers > MAX_TRAILERS:
                raise BadChunks(f"the trailers are longer than {MAX_TRAILERS} bytes")

    def _take_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise BadChunks(f"{line[:40]!r} is no size of a chunk")
        self._left = int(match[1], 16)
        self._part = _Part.DATA if self._left else _Part.TRAILERS
