"""Running and lately finished predictions by id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from corosrv.dialects.predictions.prediction import Prediction

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
        """Moves a prediction from the running to the finished ones."""
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
