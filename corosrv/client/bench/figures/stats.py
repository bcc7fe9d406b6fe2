"""Computes percentiles, medians and curves from samples. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

# The shares of a distribution's curve: even steps, and finer ones for the slowest samples.
CURVE = (*(i / 100 for i in range(100)), 0.995, 0.999, 1.0)


class Quantiles(msgspec.Struct, frozen=True):
    """Percentiles of `n` samples, in seconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    n: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the value that `share` of the ordered samples do not exceed, interpolated between the two next to it."""
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
    """Returns the values at the shares of CURVE; empty without samples."""
    ordered = sorted(samples)
    return [quantile(ordered, share) for share in CURVE] if ordered else []


def median(values: Iterable[float | None]) -> float | None:
    """Returns the median of those that are not None."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def over_rounds(rounds: Iterable[Quantiles | None]) -> Quantiles | None:
    """Returns the median round's percentiles, and the worst round's maximum."""
    per_round = [quantiles for quantiles in rounds if quantiles is not None]
    if not per_round:
        return None
    p50, p90, p95, p99 = (
        statistics.median(getattr(each, name) for each in per_round) for name in ("p50", "p90", "p95", "p99")
    )
    return Quantiles(p50, p90, p95, p99, max(each.max for each in per_round), sum(each.n for each in per_round))
