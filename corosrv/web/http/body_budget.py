"""A limit on the bytes of request bodies in memory, of all requests together."""

from __future__ import annotations

from corosrv.base.errors import TooManyBodies
from corosrv.base.waits import ThreadLock
from corosrv.web.http.heap import HeapTrimmer


class BodyBudget:
    """Counts the bytes of all bodies. Belongs to one process; a server's threads may use it as well."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = ThreadLock()
        self._heap = HeapTrimmer()
        self.n_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Raises TooManyBodies where that were more than the limit."""
        with self._lock:
            if self.n_bytes + n_bytes > self._limit:
                raise TooManyBodies(self._limit)
            self.n_bytes += n_bytes
            self._heap.note(self.n_bytes)

    def give_back(self, n_bytes: int) -> None:
        with self._lock:
            self.n_bytes -= n_bytes
            self._heap.note(self.n_bytes)


class BodyShare:
    """One request's part of the budget, from the first byte of its body until the request is over."""

    __slots__ = ("_budget", "_n_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._n_bytes = 0

    def grow(self, n_bytes: int) -> None:
        """Raises TooManyBodies; what was taken before stays taken."""
        self._budget.take(n_bytes)
        self._n_bytes += n_bytes

    def close(self) -> None:
        """Gives everything back. Calling it twice is harmless."""
        n_bytes, self._n_bytes = self._n_bytes, 0
        self._budget.give_back(n_bytes)
