"""Computes estimates from what was measured: means that follow changes, rates, and histograms."""

from __future__ import annotations

import bisect
import math

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class RunningMean:
    """Computes a mean in which each new value weighs a fifth, and the first is taken as it is."""

    __slots__ = ("value",)

    WEIGHT = 0.2

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + self.WEIGHT * (value - self.value)


class EventRate:
    """Computes events per second; one of PERIOD seconds ago weighs 1/e of one of now."""

    __slots__ = ("_at", "_rate")

    PERIOD = 10.0

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = -math.inf

    def add(self, now: float) -> None:
        self._rate = self.value(now) + 1 / self.PERIOD
        self._at = now

    def value(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / self.PERIOD) if self._rate else 0.0


class Distribution:
    """Counts values by the bounds that they do not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is of what exceeds all
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Returns how many values did not exceed each bound, as Prometheus counts them."""
        total = 0
        buckets = []
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else f"{bound:g}", total))
        return buckets
