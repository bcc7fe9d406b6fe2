"""Keeps memory in bounds: a budget for request bodies, free memory given back, and full collections while nobody waits.

The C library would keep free memory for later, and Python's collector would run in the middle of a stream.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
from collections.abc import Callable

import gevent
from gevent import get_hub

from corosrv.base.errors import TooManyBodies
from corosrv.base.waits import ThreadLock, own_hub

LARGE = 32 << 20  # bytes that were held at once, from which on it is worth the while
LEFT = 0.25  # of them may still be held
PAUSE = 1.0  # seconds after which it is done, for all that is let go of meanwhile


class HeapTrimmer:
    """Trims the heap when most of many bytes were freed. Their holders report how many there are.

    The pieces of large bodies lie in the heap between other things, where the C library keeps the room of those that
    are gone. Trimming takes some milliseconds for each hundred megabytes, in a thread of gevent's pool.
    """

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        """`trim` does it, in any thread; by default by glibc's malloc_trim, or not at all with another C library."""
        self._trim = _find_trim() if trim is None else trim
        self._n_most = 0  # bytes that were held at once since the last time
        self._is_due = False

    def note(self, n_bytes: int) -> None:
        """Takes how many bytes are held now. Never waits. Does nothing in a thread without a hub."""
        self._n_most = max(self._n_most, n_bytes)
        if self._n_most < LARGE or n_bytes > LEFT * self._n_most or self._is_due:
            return
        if self._trim is not None and own_hub() is not None:
            self._is_due = True
            gevent.spawn_later(PAUSE, self._run)

    def _run(self) -> None:
        self._is_due = False
        self._n_most = 0
        assert self._trim is not None
        get_hub().threadpool.spawn(self._trim)


def _find_trim() -> Callable[[], object] | None:
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if malloc_trim is None else lambda: malloc_trim(ctypes.c_size_t(0))


# Python's own number: a full collection is due after so many of the generation below.
_DUE = 10
# Requests leave no cycles that live long, so that the full collection can be put off; not for ever, all the same.
_OVERDUE = 2000
_NEVER = 1_000_000
# With so few clients there is little to look through besides what is frozen.
_FEW = 64


class FullCollections:
    """Puts the collector's full collections where they delay nobody. For the process that serves, in its main thread.

    What is there when serving begins lives for ever, and so does what the first requests load: it is frozen, which
    means that the collector never looks at it again. A model loaded later adds little.
    """

    def __init__(self) -> None:
        self._is_warm = False

    def take_over(self) -> None:
        """Leaves full collections to `look`. Blocks for a tenth of a second: call it before serving."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        gc.collect()
        gc.freeze()
        atexit.register(unfreeze)

    def look(self, n_clients: int) -> None:
        """Collects if that is due and few clients are connected. To be called about once a second."""
        if gc.get_count()[2] < (_DUE if n_clients <= _FEW else _OVERDUE):
            return
        gc.collect()
        if not self._is_warm and n_clients == 0:
            self._is_warm = True
            gc.freeze()


def unfreeze() -> None:
    """Ends the freezing, with all objects in the order of their age, in which Python expects to finalise them."""
    gc.freeze()
    gc.unfreeze()


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
