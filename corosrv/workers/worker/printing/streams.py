"""sys.stdout and sys.stderr of a worker: what is written belongs to the prediction of the current context."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from corosrv.workers.worker.printing.printed import Printed, place


class Stream(io.TextIOBase):
    """Any thread may write. Flushing sends a line that has no end yet.

    In a forked child nothing of the worker's can be used; there it writes to the descriptor, and what comes out at its
    other end is captured as that of any other program.
    """

    encoding = "utf-8"
    errors = "replace"
    mode = "w"
    line_buffering = True

    def __init__(self, source: str, fd: int, server_log: Printed, cancel_guard: AbstractContextManager[None]) -> None:
        """`server_log`: gets text outside predictions; `cancel_guard`: no cancel interrupts within it."""
        self.name = f"<{source}>"
        self._source = source
        self._fd = fd
        self._server_log = server_log
        self._cancel_guard = cancel_guard
        self._is_forked = False
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode("utf-8", "replace"))
        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        self.write("".join(lines))

    def write_bytes(self, data: bytes) -> None:
        if self._is_forked:
            while data:
                data = data[os.write(self._fd, data) :]
            return
        with self._cancel_guard:
            (place.get() or self._server_log).write(self._source, data)

    def flush(self) -> None:
        if not self._is_forked:
            with self._cancel_guard:
                (place.get() or self._server_log).flush(self._source)

    def become_plain(self) -> None:
        self._is_forked = True

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **options: object) -> None:
        """Changes nothing: UTF-8 goes out, by lines."""

    def close(self) -> None:
        """Stays open, for others."""


class _Bytes(io.RawIOBase):
    """A Stream's `buffer`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.raw = self

    def write(self, data: Any) -> int:
        copy = bytes(data)
        self._stream.write_bytes(copy)
        return len(copy)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stays open, for others."""
