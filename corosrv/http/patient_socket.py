"""A client's socket whose time-outs do not count a pause of this process against the client."""

from __future__ import annotations

import math
import time
from typing import Any

import gevent.socket
from gevent.socket import wait

from corosrv.waits import awake_clock

_LATE = 0.25  # seconds by which a timer may fire late in a process that runs
_LOOK = 1.0  # seconds at least for a client after a pause: what it sent meanwhile may have to come in turns


class PatientSocket(gevent.socket.socket):  # type: ignore[misc]
    """gevent's socket, which looks once more where the process itself slept through the time-out.

    After a pause all timers are due before any descriptor was looked at, so gevent's own would give up clients whose
    bytes have been there all the time.
    """

    __slots__ = ()

    def _wait(self, watcher: Any, timeout_exc: BaseException | None = None) -> None:
        error = timeout_exc or TimeoutError("timed out")
        left = self.timeout
        end = 0.0 if left is None else awake_clock.now() + left
        while True:
            due = time.monotonic() + (left or 0.0)
            try:
                return wait(watcher, left, error)  # type: ignore[no-any-return]
            except TimeoutError as raised:
                if raised is not error or time.monotonic() - due < _LATE:
                    raise
                left = max(end - awake_clock.now(), _LOOK)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends everything. Raises TimeoutError when that takes longer than the socket's time-out."""
        left = memoryview(data).cast("B")
        end = math.inf if self.timeout is None else awake_clock.now() + self.timeout
        while left:
            left = left[self.send(left, flags) :]
            if left and awake_clock.now() > end:
                raise TimeoutError("timed out")
