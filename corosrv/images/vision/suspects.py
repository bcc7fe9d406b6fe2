"""Remembers which images the encoder process died of."""

from __future__ import annotations

from collections import OrderedDict

MOST_CRASHES = 2
MEMORY = 600.0  # seconds
MAX_SUSPECTS = 1024  # the oldest are forgotten


class CrashSuspects:
    """Counts the crashes of each image, known by its SHA-256. The caller passes the time in."""

    def __init__(self) -> None:
        self._crashes: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number, and time of the last one

    def add(self, sha256: str, now: float) -> None:
        """Counts a crash while this image was being encoded."""
        n_crashes = self._count(sha256, now) + 1
        self._crashes[sha256] = n_crashes, now
        self._crashes.move_to_end(sha256)
        if len(self._crashes) > MAX_SUSPECTS:
            self._crashes.popitem(last=False)

    def is_refused(self, sha256: str, now: float) -> bool:
        """Returns whether the image crashed the encoder twice, the last time less than ten minutes ago."""
        return self._count(sha256, now) >= MOST_CRASHES

    def _count(self, sha256: str, now: float) -> int:
        n_crashes, last_at = self._crashes.get(sha256, (0, now))
        return n_crashes if now - last_at < MEMORY else 0
