"""Measures how many slots were in use on average."""

from __future__ import annotations

from bisect import bisect_right

STEPS = 400  # of a window: how exactly its averages begin when they should


class LoadWindow:
    """Remembers how many slots were in use, for averages over the last so many seconds.

    Calls that are longer than the time between two looks are seen running; shorter ones are known by what has ended
    since. Each way misses some of the other's, so the larger average counts.
    """

    def __init__(self, length: float) -> None:
        """`length`: seconds of the longest average."""
        self._length = length
        self._times: list[float] = []
        self._sums: list[tuple[float, float]] = []  # slot seconds until then: seen in use, and of ended calls
        self._looked_at = 0.0
        self._in_use = 0
        self._seen = 0.0
        self._done = 0.0

    def look(self, in_use: int, work_done: float, now: float) -> None:
        """Records the slots in use now, and the slot seconds of all calls that have ended."""
        if self._times:
            self._seen += self._in_use * (now - self._looked_at)
        self._done = work_done
        if not self._times or now - self._times[-1] >= self._length / STEPS:
            self._times.append(now)
            self._sums.append((self._seen, work_done))
        if len(self._times) > 2 * STEPS:
            del self._times[:STEPS], self._sums[:STEPS]
        self._looked_at, self._in_use = now, in_use

    def mean(self, seconds: float) -> float | None:
        """Returns the average over the last so many seconds before the last look; None if the window is younger."""
        position = bisect_right(self._times, self._looked_at - seconds) - 1
        if position < 0:
            return None
        seen, done = self._sums[position]
        return max(self._seen - seen, self._done - done) / (self._looked_at - self._times[position])
