"""Bounds the lines of log about something that may happen thousands of times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent

from corosrv.base.waits import own_hub

_INTERVAL = 1.0  # seconds
_MOST_CHARACTERS = 200


def line(text: str) -> str:
    """Returns a client's text for use in one line of log, with line breaks and control characters escaped."""
    short = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


class Flood:
    """Logs how often something happened, at most once a second, and counts every time.

    Where there is no hub, what happened too soon after the last line is counted in the next one.
    """

    def __init__(self, log: logging.Logger, words: str) -> None:
        """`words` has a %d where the number goes."""
        self._log = log
        self._words = words
        self._n = 0
        self._quiet_until = 0.0
        self._is_due = False

    def count(self, tell: Callable[[], None] | None = None) -> None:
        """Counts one more time. Calls `tell`, to log this time by itself, if nothing was logged for a second."""
        wait_s = self._quiet_until - time.monotonic()
        if tell is not None and wait_s <= 0 and not self._n:
            self._quiet_until = time.monotonic() + _INTERVAL
            tell()
            return
        self._n += 1
        if self._is_due:
            return
        if wait_s <= 0:
            self._tell()
        elif own_hub() is not None:
            self._is_due = True
            gevent.spawn_later(wait_s, self._tell)

    def _tell(self) -> None:
        n, self._n = self._n, 0
        self._is_due = False
        self._quiet_until = time.monotonic() + _INTERVAL
        self._log.warning(self._words, n)
