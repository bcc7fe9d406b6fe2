"""Writes what worker processes print into the server's log, line by line and within a limit."""

from __future__ import annotations

import logging

printed = logging.getLogger("corosrv.handler")

LINES_PER_SECOND = 500.0  # of one worker, in the long run
BURST = 1000.0  # lines; all of them may come in one turn of the hub
MAX_LINE = 16 << 10  # characters; the rest of a longer line is left out


class LineBudget:
    """Limits lines over time; once it is spent, it stays so for a second. The caller passes the current time in."""

    def __init__(self, now: float, rate: float = LINES_PER_SECOND, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._room = burst
        self._filled = now
        self._is_spent = False

    def take(self, n_lines: int, now: float) -> int:
        """Returns how many of these lines may be written."""
        self._room = min(self._burst, self._room + (now - self._filled) * self._rate)
        self._filled = now
        if self._is_spent and self._room < min(self._rate, self._burst):
            return 0
        n_allowed = min(n_lines, int(self._room))
        self._room -= n_allowed
        self._is_spent = n_allowed < n_lines
        return n_allowed


class OutputLog:
    """Writes the lines of one worker. A flood is cut: the log says how much of it was left out."""

    def __init__(self, budget: LineBudget) -> None:
        self._budget = budget
        self._n_omitted = 0

    def write(self, origin: str, source: str, text: str, now: float) -> None:
        """Writes each line of `text` with who printed it, and whether it went to stdout or stderr."""
        text = text.removesuffix("\n")
        n_lines = text.count("\n") + 1
        n_allowed = self._budget.take(n_lines, now)
        if n_allowed and self._n_omitted:
            printed.warning("%s printed too fast: %d lines were left out", origin, self._n_omitted)
            self._n_omitted = 0
        for line in text.split("\n", n_allowed)[:n_allowed]:
            printed.info("%s %s: %s", origin, source, line[:MAX_LINE])
        self._n_omitted += n_lines - n_allowed
