"""Tells the operator that readers get no file descriptor."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable

log = logging.getLogger("corosrv")

_INTERVAL = 60.0  # seconds between two lines


class DescriptorShortage:
    """Counts readers without a descriptor and writes a line about them, at most one a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._n = 0
        self._quiet_until = float("-inf")

    def count(self) -> None:
        """Counts one more reader."""
        self._n += 1
        if self._now() < self._quiet_until:
            return
        self._quiet_until = self._now() + _INTERVAL
        n, self._n = self._n, 0
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        log.warning(
            "the limit of %d open files is too low: %d new readers got no file descriptor and are looked at every "
            "10 ms instead (raise it with ulimit -n)",
            limit,
            n,
        )
