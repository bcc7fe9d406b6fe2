"""Gives memory that is free back to the system, where the C library would keep it for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import gevent
from gevent import get_hub

from corosrv.base.waits import own_hub

LARGE = 32 << 20  # bytes that were held at once, from which on it is worth the while
LEFT = 0.25  # of them may still be held
PAUSE = 1.0  # seconds after which it is done, for all that is let go of meanwhile


class HeapTrimmer:
    """Trims the heap when most of many bytes were let go of. Whoever holds them tells it how many there are.

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
