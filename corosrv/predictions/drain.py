"""The end of the service: what runs is let finish, what does not is failed, and the worker is stopped."""

from __future__ import annotations

import logging
import time
from typing import Protocol

import gevent
from gevent.event import Event

from corosrv.predictions.run import Run
from corosrv.predictions.webhooks import Webhooks

log = logging.getLogger("corosrv.predictions")

SHUT_DOWN = "ShuttingDown: server shut down"
STOP_SECONDS = 5.0  # that an idle worker gets to end by itself
# After the drain time: until killed workers' predictions are failed, and for the one try of their webhooks.
_LAST_WORDS = 1.0
_LAST_TRY = 1.5


class Stops(Protocol):
    """The part of a worker that a drain uses."""

    def stop(self, timeout: float) -> None: ...

    def kill(self) -> None: ...


class Drain:
    """Knows what runs, and brings it to an end once."""

    def __init__(self, worker: Stops, webhooks: Webhooks) -> None:
        self._worker = worker
        self._webhooks = webhooks
        self._running: dict[Run, gevent.Greenlet] = {}
        self._idle = Event()
        self._idle.set()
        self._haste = Event()

    def began(self, run: Run, greenlet: gevent.Greenlet) -> None:
        self._running[run] = greenlet
        self._idle.clear()

    def ended(self, run: Run) -> None:
        del self._running[run]
        if not self._running:
            self._idle.set()

    def hasten(self) -> None:
        """Stops waiting for running predictions. Never waits; twice is harmless."""
        self._haste.set()

    def run(self, seconds: float) -> None:
        """Waits: `seconds` and some three at most, where the worker is set up."""
        deadline = time.monotonic() + seconds
        if not (self._waits_for_runs(deadline) and self._waits_for_webhooks(deadline)):
            self._fail_the_rest()
        self._stop_worker()
        self._webhooks.close()

    def _waits_for_runs(self, deadline: float) -> bool:
        gevent.wait([self._idle, self._haste], timeout=_left(deadline), count=1)
        return self._idle.is_set() and not self._haste.is_set()

    def _waits_for_webhooks(self, deadline: float) -> bool:
        flushing = gevent.spawn(self._webhooks.flush, _left(deadline))
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


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
