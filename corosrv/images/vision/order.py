"""Follows the order in which an encoder works, to know which image it is at, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Opened:
    sha256: str
    is_cancelled: bool = False


class EncodeOrder:
    """Holds the images that an encoder process was sent and has not reported on. The caller passes the time in: that
    in which the process could run, see EncodeClock.

    The process encodes them one at a time, in the order in which they were opened. It cannot interrupt an encode: one
    that was cancelled goes on, and nobody hears of its end until another is encoded.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one image may take."""
        self._limit = limit
        self._opened: dict[int, _Opened] = {}  # by tid, which increase
        self._since = math.inf  # when the first that is not cancelled became so

    def open(self, tid: int, sha256: str, now: float) -> None:
        """Adds an image that was sent."""
        was_idle = self._first_live is None
        self._opened[tid] = _Opened(sha256)
        if was_idle:
            self._since = now

    def report(self, tid: int, now: float) -> float:
        """Removes an image that was encoded, or could not be, and all that were sent before it.

        Returns how long it took; 0 where that is not known.
        """
        if tid not in self._opened:
            return 0.0
        took = now - self._since if tid == next(iter(self._opened)) == self._first_live else 0.0
        for earlier in [other for other in self._opened if other <= tid]:
            del self._opened[earlier]
        self._since = math.inf if self._first_live is None else now
        return took

    def cancel(self, tid: int, now: float) -> None:
        """Notes that an image is of no more use: the first may be encoded at this moment, later ones never are."""
        if tid not in self._opened:
            return
        was_first = tid == self._first_live
        if tid == next(iter(self._opened)):
            self._opened[tid].is_cancelled = True
        else:
            del self._opened[tid]
        if was_first:
            self._since = math.inf if self._first_live is None else now

    def clear(self) -> None:
        """Forgets everything, for the process has ended."""
        self._opened.clear()
        self._since = math.inf

    @property
    def current(self) -> str | None:
        """The SHA-256 of the image that is being encoded, as far as can be told; None while there is none."""
        return next((image.sha256 for image in self._opened.values()), None)

    @property
    def tid(self) -> int:
        """The transfer of that image; 0 while there is none."""
        return next(iter(self._opened), 0)

    @property
    def overdue(self) -> int | None:
        """The transfer whose encode has taken too long, at its `due_at`; None where an image before it may have."""
        return self.tid if self.tid == self._first_live else None

    @property
    def due_at(self) -> float:
        """Returns when the image that is waited for has taken too long; infinity while none is.

        One that stands behind a cancelled image has the time of both.
        """
        n_encodes = 2 if len(self._opened) > 1 and next(iter(self._opened.values())).is_cancelled else 1
        return self._since + n_encodes * self._limit

    @property
    def _first_live(self) -> int | None:
        return next((tid for tid, image in self._opened.items() if not image.is_cancelled), None)
