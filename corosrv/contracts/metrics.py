"""Metrics made of rows and of tables; and exemplars: values of a histogram, each with the trace that it is from."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corosrv.contracts.jobs.terms import TracePart

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
T = TypeVar("T")


def metric(
    family: Family, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    """Makes a metric of the values of its labels, and the number of each."""
    made = family(name, text, labels=labels)
    for values, number in rows:
        made.add_metric(values, number)
    return made


def metrics_of(
    family: Family,
    prefix: str,
    table: Mapping[str, tuple[str, Callable[[T], float]]],
    labels: Sequence[str],
    things: Iterable[tuple[Sequence[str], T]],
) -> Iterator[Metric]:
    """Yields a metric for each row of a table: a name, a text, and what reads the number of a thing.

    `things`: the values of the labels, and the thing of each.
    """
    rows = list(things)
    for name, (text, read) in table.items():
        yield metric(family, prefix + name, text, labels, ((values, read(thing)) for values, thing in rows))


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
