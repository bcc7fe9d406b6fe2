"""Exemplars: values that a histogram has counted, each with the trace that it is from."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from corosrv.contracts.jobs.terms import TracePart


class Exemplar(NamedTuple):
    """A value that a histogram has counted, with the ids of the trace that it is from."""

    labels: Mapping[str, str]
    value: float
    timestamp: float  # Unix time


Bucket = tuple[str, int] | tuple[str, int, Any]  # a bound, how many values do not exceed it, and an Exemplar of its own


class Exemplars:
    """The last exemplar of each bucket of a histogram."""

    __slots__ = ("_bounds", "_of_buckets")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: which the values of a bucket do not exceed; a last bucket has what exceeds all."""
        self._bounds = bounds
        self._of_buckets: dict[int, Exemplar] = {}

    def note(self, value: float, trace: TracePart) -> None:
        """Makes a value that is counted now an exemplar, if its trace is sent."""
        if labels := trace.exemplar_labels:
            self._of_buckets[bisect_left(self._bounds, value)] = Exemplar(labels, value, time.time())

    def adopt(self, bucket: int, exemplar: Exemplar) -> None:
        """Takes an exemplar that another process has noted, unless its own is newer."""
        known = self._of_buckets.get(bucket)
        if known is None or known.timestamp < exemplar.timestamp:
            self._of_buckets[bucket] = exemplar

    def items(self) -> Iterable[tuple[int, Exemplar]]:
        """Returns the exemplars with the numbers of their buckets."""
        return self._of_buckets.items()

    def among(self, buckets: Iterable[tuple[str, int]]) -> Iterator[Bucket]:
        """Yields the buckets, each with its exemplar, if there is one."""
        for number, bucket in enumerate(buckets):
            exemplar = self._of_buckets.get(number)
            yield bucket if exemplar is None else (*bucket, exemplar)


JobExemplars = dict[tuple[str, str], Exemplars]  # by the model, and the histogram's name in DecodeStats
