"""A client's socket whose time-outs do not count a pause of this process against the client."""

from __future__ import annotations

import math
import time
from typing import Any

import gevent.socket
from gevent.socket import wait

from corosrv.base.waits import awake_clock

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
        remaining = self.timeout
        end = 0.0 if remaining is None else awake_clock.now() + remaining
        while True:
            wake_time = time.monotonic() + (remaining or 0.0)
            try:
                return wait(watcher, remaining, error)  # type: ignore[no-any-return]
            except TimeoutError as raised:
                if raised is not error or time.monotonic() - wake_time < _LATE:
                    raise
                remaining = max(end - awake_clock.now(), _LOOK)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends everything. Raises TimeoutError when that takes longer than the socket's time-out."""
        unsent = memoryview(data).cast("B")
        end = math.inf if self.timeout is None else awake_clock.now() + self.timeout
        while unsent:
            unsent = unsent[self.send(unsent, flags) :]
            if unsent and awake_clock.now() > end:
                raise TimeoutError("timed out")
