"""Reads one HTTP/1.1 answer from bytes as they come, without a socket."""

from __future__ import annotations

MAX_HEAD = 64 * 1024  # bytes
MAX_CHUNK = 16 * 1024 * 1024  # bytes


class Malformed(Exception):
    """The answer is not HTTP, or too large. A signal to the load generator, which counts the request as failed."""


class HttpAnswer:
    """Head and body of one answer; `status` is 0 until the head is whole."""

    __slots__ = ("_buffer", "_is_chunked", "_left", "is_complete", "status")

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self._buffer = b""
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body still to come; None: until the connection closes

    def feed(self, data: bytes) -> bytes:
        """Returns the part of the body that `data` completes. Raises Malformed."""
        if self.status == 0:
            data = self._take_head(data)
            if self.status == 0:
                return b""
        return self._take_chunks(data) if self._is_chunked else self._take_plain(data)

    def end(self) -> bool:
        """Takes the end of the connection; tells whether the answer is complete."""
        if self.status and not self._is_chunked and self._left is None:
            self.is_complete = True
        return self.is_complete

    def _take_head(self, data: bytes) -> bytes:
        head, blank_line, body = (self._buffer + data).partition(b"\r\n\r\n")
        if not blank_line:
            if len(head) > MAX_HEAD:
                raise Malformed("the head of the answer does not end")
            self._buffer = head
            return b""
        self._buffer = b""
        status_line, *lines = head.decode("latin-1").split("\r\n")
        status = _status(status_line)
        if 100 <= status < 200:  # an interim answer; the real one follows
            return self._take_head(body)
        self.status = status
        self._frame({name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)})
        return body

    def _frame(self, headers: dict[str, str]) -> None:
        if headers.get("content-encoding", "identity") != "identity":
            raise Malformed("the answer is compressed, which was not asked for")
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        if not self._is_chunked and length:
            if not length.isdigit():
                raise Malformed(f"Content-Length is {length!r}")
            self._left = int(length)
            self.is_complete = self._left == 0

    def _take_plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.is_complete = self._left == 0
        return body

    def _take_chunks(self, data: bytes) -> bytes:
        """Takes whole chunks only; the rest of a chunk that was cut comes with the next read."""
        buffer = self._buffer + data if self._buffer else data
        pieces: list[bytes] = []
        at = 0
        while not self.is_complete and (line_end := buffer.find(b"\r\n", at)) >= 0:
            size = _chunk_size(buffer[at:line_end])
            end = line_end + 2 + size
            if size == 0:
                self.is_complete = True  # trailers may follow; nobody wants them
            elif len(buffer) < end + 2:
                break
            elif buffer[end : end + 2] != b"\r\n":
                raise Malformed("a chunk is longer than it says")
            else:
                pieces.append(buffer[line_end + 2 : end])
            at = end + 2
        self._buffer = buffer[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _status(line: str) -> int:
    version, _, status = line.partition(" ")
    code = status[:3]
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise Malformed(f"the answer begins with {line[:40]!r}")
    return int(code)


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        raise Malformed(f"a chunk's size is {line[:20]!r}") from None
    if not 0 <= size <= MAX_CHUNK:
        raise Malformed(f"a chunk of {size} bytes")
    return size
