"""Runs the predictor's own health check, one at a time for all who ask."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from gevent.event import AsyncResult

LIMIT = 5.0  # seconds


class HealthChecks:
    """Runs one check at a time; callers that ask meanwhile share it, and none begins while one hangs."""

    def __init__(self, send: Callable[[str], None], limit: float = LIMIT) -> None:
        """`send` asks the worker to run the check of this id; it must not wait."""
        self._send = send
        self._limit = limit
        self._ids = map(str, itertools.count())
        self._running: tuple[str, float, AsyncResult] | None = None  # id, deadline, its outcome

    def ask(self) -> str | None:
        """Returns None if the predictor is healthy, otherwise the reason. Waits until the limit at most."""
        if self._running is None:
            check_id = next(self._ids)
            self._running = check_id, time.monotonic() + self._limit, AsyncResult()
            self._send(check_id)
        _, deadline, outcome = self._running
        reason: str | None = None
        if outcome.wait(max(0.0, deadline - time.monotonic())) is None and not outcome.ready():
            return f"Healthcheck failed: user-defined healthcheck timed out after {self._limit:.1f} seconds"
        reason = outcome.get_nowait()
        return reason

    def answer(self, check_id: str, reason: str | None) -> None:
        """Ends the check with this outcome, unless it was given up or answered before."""
        if self._running is not None and self._running[0] == check_id:
            self.give_up(reason)

    def give_up(self, reason: str | None) -> None:
        """Ends the running check with this outcome and wakes everyone waiting for it."""
        running, self._running = self._running, None
        if running is not None:
            running[2].set(reason)
