"""Log lines for what may happen thousands of times a second."""

from __future__ import annotations

import logging
import time

import gevent
from gevent._hub_local import get_hub_if_exists

_INTERVAL = 1.0  # seconds


class Flood:
    """Says how often something happened, at most once a second, and forgets nothing. Used from one thread."""

    def __init__(self, log: logging.Logger, words: str) -> None:
        """`words` has a %d where the number goes."""
        self._log = log
        self._words = words
        self._n = 0
        self._quiet_until = 0.0
        self._is_due = False

    def count(self) -> None:
        """It happened once more."""
        self._n += 1
        if self._is_due:
            return
        left = self._quiet_until - time.monotonic()
        if left <= 0 or get_hub_if_exists() is None:
            self._tell()
        else:
            self._is_due = True
            gevent.spawn_later(left, self._tell)

    def _tell(self) -> None:
        n, self._n = self._n, 0
        self._is_due = False
        self._quiet_until = time.monotonic() + _INTERVAL
        self._log.warning(self._words, n)
