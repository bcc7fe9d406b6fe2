"""Turns values into places on a plot, and finds round numbers to mark an axis with. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A linear scale: values from 0 to `top`, places from `start` to `end`."""

    top: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top

    def ticks(self, n: int = 5) -> list[float]:
        """Returns round numbers, about `n` of them."""
        rough = self.top / n
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - rough))
        return [i * step for i in range(int(self.top / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale from `low` to `high`, both above zero."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        """Powers of ten, with 2 and 5 between them where there are few."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            ticks = [factor * 10.0**power for power in powers for factor in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) >= 3:
                break
        return ticks


@dataclass(frozen=True, slots=True)
class TailScale:
    """A scale for shares of samples that shows the slow ones: each step between two of KNOTS takes equal room."""

    KNOTS: ClassVar[tuple[float, ...]] = (0.0, 0.5, 0.9, 0.99, 0.999)

    start: float
    end: float

    def __call__(self, share: float) -> float:
        for i, (low, high) in enumerate(pairwise(self.KNOTS)):
            if share <= high:
                part = (share - low) / (high - low)
                return self.start + (self.end - self.start) * (i + part) / (len(self.KNOTS) - 1)
        return self.end
