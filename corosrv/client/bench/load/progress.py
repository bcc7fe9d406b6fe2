"""Shows the progress of a load in one line of a terminal; writes nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TextIO

from corosrv.client.bench.load.round import Counts

CLEAR = "\r\x1b[K"
WIDTH = 110


class Progress:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_shown = out.isatty()

    def begin(self, title: str, n: int) -> Callable[[Counts], None]:
        """Begins a round of `n` requests; returns what is to be called with its counts from time to time."""
        began = monotonic()

        def tell(counts: Counts) -> None:
            self._show(line(title, n, counts, monotonic() - began))

        tell(Counts())
        return tell

    def close(self) -> None:
        """Clears the line. Twice is harmless."""
        self._show("")

    def _show(self, text: str) -> None:
        if self._is_shown:
            self._out.write(CLEAR + text)
            self._out.flush()


def line(title: str, n: int, counts: Counts, seconds: float) -> str:
    failed = f", {counts.failed} failed" if counts.failed else ""
    speed = counts.events / seconds if seconds > 0 else 0.0
    return f"{title}: {counts.done}/{n} done{failed}, {counts.open} open, {speed:.0f} tokens/s"[:WIDTH]
