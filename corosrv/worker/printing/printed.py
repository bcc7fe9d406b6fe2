"""Where printed text goes: to a prediction, or to the server's log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

from corosrv.worker.printing.lines import Lines

SOURCES = ("stdout", "stderr")


class Printed:
    """What is printed in one place, sent on as lines. Any thread; also a destructor amid a call of the same thread."""

    def __init__(self, send: Callable[[str, str], None], after: Printed | None = None) -> None:
        """`send(source, text)`; `after`: where it goes once this one is closed."""
        self._send = send
        self._after = after
        self._lines = {source: Lines() for source in SOURCES}
        self._queue: deque[tuple[str, bytes | None]] = deque()
        self._lock = threading.RLock()
        self._is_sending = False
        self._is_closed = False

    def write(self, source: str, data: bytes) -> None:
        self._put(source, data)

    def flush(self, source: str) -> None:
        """Sends what has no end of line yet."""
        self._put(source, None)

    def close(self) -> None:
        """Sends what is left. What is printed from now on goes elsewhere."""
        with self._lock:
            for source in SOURCES:
                self._put(source, None)
            self._is_closed = True

    def _put(self, source: str, data: bytes | None) -> None:
        with self._lock:
            if not self._is_closed:
                self._queue.append((source, data))
                # A destructor that prints amid this loop only queues.
                while self._queue and not self._is_sending:
                    self._send_queued()
                return
        if self._after is not None:
            self._after._put(source, data)

    def _send_queued(self) -> None:
        self._is_sending = True
        try:
            while self._queue:
                source, data = self._queue.popleft()
                lines = self._lines[source]
                for text in lines.take_rest() if data is None else lines.feed(data):
                    self._send(source, text)
        finally:
            self._is_sending = False


# Where the current context prints; None: the server's log. Threads inherit it by corosrv.worker.printing.threads.
place: ContextVar[Printed | None] = ContextVar("corosrv_printed", default=None)
