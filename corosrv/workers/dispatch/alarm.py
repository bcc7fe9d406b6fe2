"""Sets the one timer of a dispatcher."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub


class Alarm(Protocol):
    """Calls a function in the hub when a time has come."""

    def ring_by(self, at: float) -> None:
        """Calls at this time or before, but not earlier than at any that was named before. Never waits."""

    def close(self) -> None:
        """Calls no more. Twice is harmless."""


class HubAlarm:
    """Sets one timer of the hub, and moves it only forwards: one that rings early is set again by whoever it calls."""

    def __init__(self, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._at = math.inf
        self._timer: Any = None

    def ring_by(self, at: float) -> None:
        if at >= self._at:
            return
        self._stop()
        self._at = at
        self._timer = get_hub().loop.timer(max(at - time.monotonic(), 0.0))
        self._timer.start(self._ring)

    def close(self) -> None:
        self._stop()
        self._at = -math.inf

    def _ring(self) -> None:
        self._stop()
        self._at = math.inf
        self._on_ring()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None
