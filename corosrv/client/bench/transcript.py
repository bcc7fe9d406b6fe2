"""Follows one answer as its bytes come in, and makes an outcome of it, without a socket or a clock.

Bytes are split into server-sent events wherever they are cut; of an event, only what a measurement needs is decoded.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from corosrv.client.bench.target import Failure, FailureKind, RequestOutcome

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


DONE = b"[DONE]"


class StreamDelta(msgspec.Struct):
    """The part of a chat's answer in one event; thoughts come under one of two more names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class StreamChoice(msgspec.Struct):
    text: str | None = None
    delta: StreamDelta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)

    @property
    def visible_text(self) -> str:
        """The text, without thoughts and calls."""
        return (self.text if self.delta is None else self.delta.content) or ""


class StreamUsage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int = 0


class StreamEvent(msgspec.Struct):
    choices: list[StreamChoice] = []
    usage: StreamUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(StreamEvent).decode


class ErrorBody(msgspec.Struct):
    message: str = ""


class ErrorReply(msgspec.Struct):
    error: ErrorBody | str = ""


def error_message(body: bytes) -> str:
    """Returns the message in the body of an error, or the body's beginning."""
    try:
        error = msgspec.json.decode(body, type=ErrorReply).error
    except msgspec.DecodeError:
        error = ""
    text = error.message if isinstance(error, ErrorBody) else error
    return text or body[:200].decode("utf-8", "replace").strip()


PREFIX = b"data: "


class Scanner:
    """Finds the data of each event."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of every event that `data` completes; events without any are left out."""
        if self._tail:
            data = self._tail + data
        # JSON has no bare carriage return. One at the very end stays in the tail until its line feed is there.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *blocks, self._tail = data.split(b"\n\n")
        return [event for block in blocks if (event := _data(block))]


def _data(block: bytes) -> bytes:
    if block.startswith(PREFIX) and b"\n" not in block:  # what nearly all events look like
        return block[len(PREFIX) :]
    lines = (line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(lines)


MAX_ERROR_BODY = 64 * 1024  # bytes


class Transcript:
    """Follows one streamed answer of `max_tokens` tokens: feed() until it is over, then outcome()."""

    __slots__ = (
        "_answer",
        "_error_body",
        "_failure",
        "_finish",
        "_max_tokens",
        "_pieces",
        "_prompt_tokens",
        "_scanner",
        "_usage_tokens",
        "arrivals",
        "events",
    )

    def __init__(self, max_tokens: int, pieces: list[str] | None = None) -> None:
        """`pieces`: gets the text, without thoughts and calls."""
        self._pieces = pieces
        self.arrivals = array("d")
        self.events = 0  # those with text
        self._max_tokens = max_tokens
        self._answer = HttpAnswer()
        self._scanner = Scanner()
        self._error_body = b""
        self._failure: Failure | None = None
        self._finish = ""
        self._usage_tokens: int | None = None
        self._prompt_tokens: int | None = None

    def feed(self, data: bytes, now: float) -> bool:
        """Takes the bytes of one read, none at the end of the connection; returns whether the answer is over."""
        try:
            body = self._answer.feed(data) if data else b""
            if self._answer.status not in (0, 200):
                return self._take_error(body, is_end=not data)
            n_before = self.events
            is_done = self._take_events(body)
        except (Malformed, msgspec.DecodeError) as error:
            return self.fail(FailureKind.MALFORMED, str(error))
        if self.events > n_before:
            self.arrivals.append(now)
        if is_done or self._answer.is_complete:
            return True
        return not data and self._take_end()

    def fail(self, kind: FailureKind, detail: str, status: int = 0) -> bool:
        """Notes a failure, of which the first counts. Returns True: the answer is over."""
        self._failure = self._failure or Failure(kind, detail, status)
        return True

    def outcome(self, began: float, end_time: float, is_arriving: bool = False) -> RequestOutcome:
        tokens = self.events if self._usage_tokens is None else self._usage_tokens
        return RequestOutcome(
            began,
            end_time,
            self.arrivals,
            self.events,
            tokens,
            self._prompt_tokens,
            self._usage_tokens is not None,
            self._finish,
            self._failure or self._shortfall(),
            is_arriving,
        )

    def _take_events(self, body: bytes) -> bool:
        for data in self._scanner.feed(body):
            if data == DONE:
                return True
            if self._take(decode(data)):
                return True
        return False

    def _take(self, event: StreamEvent) -> bool:
        for choice in event.choices:
            if choice.has_text:
                self.events += 1
                if self._pieces is not None:
                    self._pieces.append(choice.visible_text)
            if choice.finish_reason:
                self._finish = choice.finish_reason
        # Some servers send a usage with every event: the last one counts.
        if event.usage is not None:
            self._usage_tokens = event.usage.completion_tokens
            self._prompt_tokens = event.usage.prompt_tokens
        if event.error is None:
            return False
        return self.fail(FailureKind.ERROR, error_message(msgspec.json.encode({"error": event.error})))

    def _take_error(self, body: bytes, is_end: bool) -> bool:
        self._error_body += body
        if is_end or self._answer.is_complete or len(self._error_body) > MAX_ERROR_BODY:
            return self.fail(FailureKind.STATUS, error_message(self._error_body), self._answer.status)
        return False

    def _take_end(self) -> bool:
        """Takes the end of the connection before [DONE]; returns True: the answer is over."""
        if self._answer.status == 0:
            return self.fail(FailureKind.CONNECTION, "closed before an answer")
        if not self._answer.end():
            return self.fail(FailureKind.CONNECTION, "closed within the answer")
        return True

    def _shortfall(self) -> Failure | None:
        """Returns what is missing in an answer that looks complete, if anything."""
        if not self._finish:
            return Failure(FailureKind.CUT, "the stream ended without a finish reason")
        # Events may carry several tokens: only a usage can tell that there were too few.
        tokens = self._usage_tokens
        if self._finish == "length" and tokens is not None and tokens < self._max_tokens:
            return Failure(FailureKind.SHORT, f"{tokens} tokens of {self._max_tokens}, and the finish reason is length")
        return None
