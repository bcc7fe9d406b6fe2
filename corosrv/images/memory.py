"""A limit on the bytes that images take in memory, of all requests together."""

from __future__ import annotations

from collections import deque

from corosrv.base.errors import TooManyImages
from corosrv.base.waits import ThreadLock


class ImageMemory:
    """Counts the bytes of all images. Belongs to one process, whose threads may all use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = ThreadLock()
        self._n_bytes = 0
        # Leases may end while garbage is collected, where no lock can be waited for.
        self._returned: deque[int] = deque()

    @property
    def n_bytes(self) -> int:
        with self._lock:
            return self._settled()

    def lend(self, n_bytes: int) -> MemoryLease:
        """Raises TooManyImages where that were more than the limit."""
        with self._lock:
            if self._settled() + n_bytes > self._limit:
                raise TooManyImages(self._limit)
            self._n_bytes += n_bytes
        return MemoryLease(self._returned, n_bytes)

    def _settled(self) -> int:
        while self._returned:
            self._n_bytes -= self._returned.popleft()
        return self._n_bytes


class MemoryLease:
    """Holds bytes of the memory until it is closed, or until nobody has it any more: each image has its own."""

    __slots__ = ("_n_bytes", "_returned")

    def __init__(self, returned: deque[int], n_bytes: int) -> None:
        self._returned = returned
        self._n_bytes = n_bytes

    def __enter__(self) -> MemoryLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the bytes back. Twice is harmless."""
        n_bytes, self._n_bytes = self._n_bytes, 0
        if n_bytes:
            self._returned.append(n_bytes)

    __del__ = close
