"""Log lines for what may happen thousands of times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent

from corosrv.waits import own_hub

_INTERVAL = 1.0  # seconds
_MOST_CHARACTERS = 200


def line(text: str) -> str:
    """A client's text as part of one line of log: what would begin another, or steer a terminal, is spelled out."""
    short = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


class Flood:
    """Says how often something happened, at most once a second, and forgets nothing.

    Where there is no hub, what happened too soon after the last line is told with the next one.
    """

    def __init__(self, log: logging.Logger, words: str) -> None:
        """`words` has a %d where the number goes."""
        self._log = log
        self._words = words
        self._n = 0
        self._quiet_until = 0.0
        self._is_due = False

    def count(self, tell: Callable[[], None] | None = None) -> None:
        """It happened once more. `tell` writes a line about it alone, where there was none for a while."""
        left = self._quiet_until - time.monotonic()
        if tell is not None and left <= 0 and not self._n:
            self._quiet_until = time.monotonic() + _INTERVAL
            tell()
            return
        self._n += 1
        if self._is_due:
            return
        if left <= 0:
            self._tell()
        elif own_hub() is not None:
            self._is_due = True
            gevent.spawn_later(left, self._tell)

    def _tell(self) -> None:
        n, self._n = self._n, 0
        self._is_due = False
        self._quiet_until = time.monotonic() + _INTERVAL
        self._log.warning(self._words, n)
