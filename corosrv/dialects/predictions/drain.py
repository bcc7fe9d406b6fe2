"""The end of the service: lets running predictions finish, fails those that take too long, stops the worker.

`Supervisor` knows running and lately finished predictions by id.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from corosrv.dialects.predictions.prediction import Prediction
from corosrv.dialects.predictions.run import Run
from corosrv.dialects.predictions.webhooks import Webhooks

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.predictor_process import PredictorWorker

log = logging.getLogger("corosrv.predictions")

MAX_FINISHED = 1000
MAX_BYTES = 256 << 20  # of all that ended; the latest is kept, however large


class Supervisor:
    """Knows a prediction from its acceptance until `ttl` seconds after its end. Times are passed in; nothing waits."""

    def __init__(self, ttl: float, limit: int = MAX_FINISHED, max_bytes: int = MAX_BYTES) -> None:
        self._ttl = ttl
        self._limit = limit
        self._max_bytes = max_bytes
        self._n_bytes = 0  # of those that ended
        self._running: dict[str, Prediction] = {}
        # By the time of forgetting, which is the order of their ends.
        self._finished: OrderedDict[str, tuple[float, Prediction]] = OrderedDict()

    @property
    def running(self) -> Iterable[Prediction]:
        return tuple(self._running.values())

    @property
    def n_running(self) -> int:
        return len(self._running)

    def find_running(self, id: str) -> Prediction | None:
        return self._running.get(id)

    def find_finished(self, id: str, now: float) -> Prediction | None:
        self.forget(now)
        return self._finished[id][1] if id in self._finished else None

    def find(self, id: str, now: float) -> Prediction | None:
        return self.find_running(id) or self.find_finished(id, now)

    def add(self, prediction: Prediction) -> None:
        """Adds an accepted prediction. Raises ValueError if its id is taken."""
        if prediction.id in self._running or prediction.id in self._finished:
            raise ValueError(f"the id {prediction.id} is taken")
        self._running[prediction.id] = prediction

    def finish(self, prediction: Prediction, now: float) -> None:
        del self._running[prediction.id]
        self._finished[prediction.id] = (now + self._ttl, prediction)
        self._n_bytes += prediction.n_bytes
        while len(self._finished) > self._limit or (self._n_bytes > self._max_bytes and len(self._finished) > 1):
            self._forget_oldest()
        self.forget(now)

    def forget(self, now: float) -> float | None:
        """Drops expired predictions; returns when the next one expires, None if no finished one is kept."""
        while self._finished:
            expires_at, _ = next(iter(self._finished.values()))
            if expires_at > now:
                return expires_at
            self._forget_oldest()
        return None

    def _forget_oldest(self) -> None:
        _, (_, prediction) = self._finished.popitem(last=False)
        self._n_bytes -= prediction.n_bytes


SHUT_DOWN = "ShuttingDown: server shut down"
STOP_SECONDS = 5.0  # that an idle worker has to end by itself
# After the drain time: until killed workers' predictions are failed, and for the one try of their webhooks.
_LAST_WORDS = 1.0
_LAST_TRY = 1.5


class Drain:
    """Knows the running predictions, and ends them once."""

    def __init__(self, worker: PredictorWorker, webhooks: Webhooks) -> None:
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
