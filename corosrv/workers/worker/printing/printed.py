"""Destinations of printed text: a prediction, or the server's log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

from corosrv.workers.worker.printing.lines import Lines

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
# corosrv.workers.worker.printing.threads.
place: ContextVar[Printed | None] = ContextVar("corosrv_printed", default=None)
