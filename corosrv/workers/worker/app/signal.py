"""Signals a running request that it is cancelled or late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from corosrv.base.errors import CallCancelled, DeadlinePassed


class EndSignal:
    """Says whether a request is still wanted. Any thread."""

    def __init__(self, deadline: float | None = None) -> None:
        """`deadline`: of time.monotonic()."""
        self.deadline = deadline
        self.is_set = False  # somebody has said that it must end
        self._is_deadline = False
        self._has_ended = threading.Event()
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def set(self, *, is_deadline: bool = False) -> None:
        """Says that the request must end, once; later calls do nothing."""
        with self._lock:
            if self.is_set:
                return
            self._is_deadline = is_deadline
            self.is_set = True
            listeners = list(self._listeners)
        self._has_ended.set()
        for listener in listeners:
            listener()

    def on_set(self, listener: Callable[[], object]) -> None:
        """Calls a function once, in the thread that sets the signal; at once if it is set. It must not wait."""
        with self._lock:
            if not self.is_set:
                self._listeners.append(listener)
                return
        listener()

    def remaining(self) -> float | None:
        """Returns the seconds that are left, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def error(self) -> CallCancelled | DeadlinePassed | None:
        """Returns why the request must end; None if it is wanted."""
        if self.is_set and not self._is_deadline:
            return CallCancelled("the call was cancelled")
        if self.is_set or self.remaining() == 0.0:
            return DeadlinePassed("the time of the call is over")
        return None

    def check(self) -> None:
        """Raises error() if there is one."""
        error = self.error()
        if error is not None:
            raise error

    def wait(self, seconds: float) -> None:
        """Waits. Raises what check() raises, as soon as it would."""
        remaining = self.remaining()
        self._has_ended.wait(seconds if remaining is None else min(seconds, remaining))
        self.check()
