"""Samples to figures: percentiles, medians, spreads. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

# Where a curve of a distribution is kept: evenly, and finer where the slow ones are.
CURVE = (*(i / 100 for i in range(100)), 0.995, 0.999, 1.0)


class Quantiles(msgspec.Struct, frozen=True):
    """Of `n` samples, in seconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    n: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ordered samples do not exceed, interpolated between the two next to it."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def quantiles(samples: Iterable[float]) -> Quantiles | None:
    ordered = sorted(samples)
    if not ordered:
        return None
    p50, p90, p95, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(p50, p90, p95, p99, ordered[-1], len(ordered))


def curve(samples: Iterable[float]) -> list[float]:
    """The values at the shares of CURVE; empty without samples."""
    ordered = sorted(samples)
    return [quantile(ordered, share) for share in CURVE] if ordered else []


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def over_rounds(rounds: Iterable[Quantiles | None]) -> Quantiles | None:
    """The median round's percentiles, and the worst round's maximum."""
    there = [one for one in rounds if one is not None]
    if not there:
        return None
    p50, p90, p95, p99 = (
        statistics.median(getattr(one, name) for one in there) for name in ("p50", "p90", "p95", "p99")
    )
    return Quantiles(p50, p90, p95, p99, max(one.max for one in there), sum(one.n for one in there))
