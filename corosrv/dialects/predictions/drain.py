"""The end of the service: lets running predictions finish, fails those that take too long, stops the worker."""

from __future__ import annotations

import logging
import time
from typing import Protocol

import gevent
from gevent.event import Event

from corosrv.dialects.predictions.run import Run
from corosrv.dialects.predictions.webhooks import Webhooks

log = logging.getLogger("corosrv.predictions")

SHUT_DOWN = "ShuttingDown: server shut down"
STOP_SECONDS = 5.0  # that an idle worker has to end by itself
# After the drain time: until killed workers' predictions are failed, and for the one try of their webhooks.
_LAST_WORDS = 1.0
_LAST_TRY = 1.5


class Stops(Protocol):
    """The part of a worker that a drain uses."""

    def stop(self, timeout: float) -> None: ...

    def kill(self) -> None: ...


class Drain:
    """Knows the running predictions, and ends them once."""

    def __init__(self, worker: Stops, webhooks: Webhooks) -> None:
        self._worker = worker
        self._webhooks = webhooks
        self._running: dict[Run, gevent.Greenlet] = {}
        self._idle = Event()
        self._idle.set()
        self._haste = Event()

    def add(self, run: Run, greenlet: gevent.Greenlet) -> None:
        self._running[run] = greenlet
        self._idle.clear()

    def remove(self, run: Run) -> None:
        del self._running[run]
        if not self._running:
            self._idle.set()

    def hasten(self) -> None:
        """Stops waiting for running predictions. Never waits. Later calls do nothing."""
        self._haste.set()

    def run(self, seconds: float) -> None:
        """Drains, and stops the worker. Waits, some three seconds longer than `seconds` at most if that is set up."""
        deadline = time.monotonic() + seconds
        if not (self._waits_for_runs(deadline) and self._waits_for_webhooks(deadline)):
            self._fail_the_rest()
        self._stop_worker()
        self._webhooks.close()

    def _waits_for_runs(self, deadline: float) -> bool:
        gevent.wait([self._idle, self._haste], timeout=_seconds_until(deadline), count=1)
        return self._idle.is_set() and not self._haste.is_set()

    def _waits_for_webhooks(self, deadline: float) -> bool:
        flushing = gevent.spawn(self._webhooks.flush, _seconds_until(deadline))
        gevent.wait([flushing, self._haste], count=1)
        is_done = flushing.ready() and flushing.value
        flushing.kill()
        return bool(is_done)

    def _fail_the_rest(self) -> None:
        if self._running:
            log.warning("%d predictions did not end in time and fail", len(self._running))
        for run in self._running:
            run.doom(SHUT_DOWN)
        self._webhooks.hurry()
        self._worker.kill()
        if not self._idle.wait(_LAST_WORDS):
            gevent.killall(list(self._running.values()), timeout=_LAST_WORDS)
        self._webhooks.flush(_LAST_TRY)

    def _stop_worker(self) -> None:
        stopping = gevent.spawn(self._worker.stop, STOP_SECONDS)
        if not self._haste.is_set():
            gevent.wait([stopping, self._haste], count=1)
        if not stopping.ready():
            self._worker.kill()
        stopping.join(_LAST_WORDS)


def _seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
