"""Signals a running request that it is cancelled or late, and converts errors of its calls to an author's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    ErrorKind,
    HandlerFailed,
    NotFound,
    NotOffered,
    Refused,
    Unavailable,
    WorkerLost,
)
from corosrv.workers.worker.app.errors import Cancelled, DeadlineExceeded

_CLASSES: dict[ErrorKind, type[CorosrvError]] = {
    ErrorKind.INVALID_REQUEST: CallRefused,
    ErrorKind.CONTEXT_EXCEEDED: CallRefused,
    ErrorKind.TOO_LARGE: Refused,
    ErrorKind.NOT_OFFERED: NotOffered,
    ErrorKind.NOT_FOUND: NotFound,
    ErrorKind.UNAVAILABLE: Unavailable,
    ErrorKind.RATE_LIMITED: Unavailable,
    ErrorKind.CLIENT_GONE: CallCancelled,
    ErrorKind.CONFLICT: Conflict,
    ErrorKind.DEADLINE_PASSED: DeadlinePassed,
    ErrorKind.WORKER_LOST: WorkerLost,
}
_KINDS = {kind.value: kind for kind in ErrorKind}


def error_of(
    status: int, error_kind: str, message: str, code: str | None = None, retry_after: int | None = None
) -> CorosrvError:
    """Returns the error that a server has answered with, as an author knows it: HandlerFailed for the unknown."""
    kind = _KINDS.get(error_kind, ErrorKind.FAILED)
    error = _CLASSES.get(kind, HandlerFailed)(message)
    error.status = status
    error.kind = kind
    error.code = code
    error.retry_after = retry_after
    return error


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

    def error(self) -> Cancelled | DeadlineExceeded | None:
        """Returns why the request must end; None if it is wanted."""
        if self.is_set and not self._is_deadline:
            return Cancelled("the call was cancelled")
        if self.is_set or self.remaining() == 0.0:
            return DeadlineExceeded("the time of the call is over")
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
