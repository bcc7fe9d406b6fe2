"""Sends printed text to a prediction or to the server's log: whole lines where possible, none without limit."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

MAX_LINE = 4 << 20  # bytes; the rest of a longer line is left out
MAX_PIECE = 1 << 20  # bytes: as JSON it takes six times as much at worst, and has to fit into a frame
NOTICE = b" [TRUNCATED: the line is longer than 4 MiB]\n"

_SPLIT_CHARACTER = re.compile(rb"(?:[\xc0-\xff][\x80-\xbf]{0,2})\Z")


class Lines:
    """Splits the bytes of one stream into pieces of text. Sans-IO; invalid UTF-8 is replaced.

    A carriage return begins a line anew, as progress bars do. What is left out of a long line costs a search for its
    end and nothing else.
    """

    __slots__ = ("_held", "_is_cut", "_n_held", "_n_sent")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the unsent beginning of a line
        self._n_held = 0
        self._n_sent = 0  # bytes of the current line that were sent
        self._is_cut = False  # the rest of the current line is left out; nothing of it is held

    def feed(self, data: bytes) -> list[str]:
        """Returns the pieces to send: up to the last end of line, or all if too much waits."""
        if len(data) <= MAX_PIECE:
            return self._feed(data)
        parts = (data[at : at + MAX_PIECE] for at in range(0, len(data), MAX_PIECE))
        return [piece for part in parts for piece in self._feed(part)]

    def take_unfinished(self) -> list[str]:
        """Returns the line that has no end yet."""
        return self._pieces(self._take(), b"")

    def _feed(self, data: bytes) -> list[str]:
        if self._is_cut:
            data = self._skip_line(data)
        end = data.rfind(b"\n") + 1
        if end:
            return self._pieces(self._take() + data[:end], data[end:])
        if self._n_held + len(data) < MAX_PIECE:
            self._hold(data)
            return []
        text = self._take() + data
        split = _SPLIT_CHARACTER.search(text, max(0, len(text) - 3))
        end_of_text = split.start() if split else len(text)
        return self._pieces(text[:end_of_text], text[end_of_text:])

    def _skip_line(self, data: bytes) -> bytes:
        """Leaves out the rest of the current line; returns what follows it."""
        end = _end_of_line(data)
        self._is_cut = not end
        return data[end:] if end else b""

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._n_held += len(data)

    def _take(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._n_held = 0
        return data

    def _pieces(self, ready: bytes, remainder: bytes) -> list[str]:
        if self._n_sent + len(ready) > MAX_LINE:
            ready = self._limited(ready)
        elif ready:
            self._count_sent(ready)
        if not self._is_cut:
            self._hold(remainder)
        if len(ready) <= MAX_PIECE:
            return [ready.decode("utf-8", "replace")] if ready else []
        text = ready.decode("utf-8", "replace")
        step = MAX_PIECE // 4  # characters, of at most four bytes
        return [text[at : at + step] for at in range(0, len(text), step)]

    def _count_sent(self, text: bytes) -> None:
        start = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._n_sent = len(text) - start + (0 if start else self._n_sent)

    def _limited(self, text: bytes) -> bytes:
        """Cuts the current line to the limit. `text` is far shorter than two of the longest lines."""
        end = _end_of_line(text)
        line, others = (text[:end], text[end:]) if end else (text, b"")
        n_allowed = MAX_LINE - self._n_sent
        self._n_sent = 0
        if len(line) > n_allowed:
            self._is_cut = not end
            line = line[:n_allowed] + NOTICE
        self._count_sent(others)
        return line + others


def _end_of_line(data: bytes) -> int:
    """Returns where the first line of `data` ends, behind its end of line; 0 if it does not."""
    newline = data.find(b"\n") + 1
    carriage_return = data.find(b"\r", 0, newline or None) + 1
    return carriage_return or newline


SOURCES = ("stdout", "stderr")


class Printed:
    """Sends the text that is printed in one scope, as lines. Any thread may write, also a destructor within a call."""

    def __init__(self, send: Callable[[str, str], None], successor: Printed | None = None) -> None:
        """Sends with `send(source, text)`; once closed, passes text to `successor`."""
        self._send = send
        self._successor = successor
        self._lines = {source: Lines() for source in SOURCES}
        self._queue: deque[tuple[str, bytes | None]] = deque()
        self._lock = threading.RLock()
        self._is_sending = False
        self._is_closed = False

    def write(self, source: str, data: bytes) -> None:
        self._enqueue(source, data)

    def flush(self, source: str) -> None:
        """Sends a line that has no end yet."""
        self._enqueue(source, None)

    def close(self) -> None:
        """Sends the rest. Later text goes to the successor."""
        with self._lock:
            for source in SOURCES:
                self._enqueue(source, None)
            self._is_closed = True

    def _enqueue(self, source: str, data: bytes | None) -> None:
        with self._lock:
            if not self._is_closed:
                self._queue.append((source, data))
                # A destructor that prints amid this loop only queues.
                while self._queue and not self._is_sending:
                    self._send_queued()
                return
        if self._successor is not None:
            self._successor._enqueue(source, data)

    def _send_queued(self) -> None:
        self._is_sending = True
        try:
            while self._queue:
                source, data = self._queue.popleft()
                lines = self._lines[source]
                for text in lines.take_unfinished() if data is None else lines.feed(data):
                    self._send(source, text)
        finally:
            self._is_sending = False


# Where the current context prints; None: the server's log. Threads inherit it by
# corosrv.workers.worker.capture.
place: ContextVar[Printed | None] = ContextVar("corosrv_printed", default=None)
