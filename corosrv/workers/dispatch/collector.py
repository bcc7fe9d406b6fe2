"""Offers a dispatcher's numbers to Prometheus. Labels are keys and words of this server, never what a client wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.workers.dispatch.stats import Buckets, DispatchStats, KeyStats

_GAUGES: dict[str, tuple[str, Callable[[KeyStats], float]]] = {
    "queue_depth": ("Calls that wait", lambda stats: stats.depth),
    "queue_oldest_seconds": ("How long the oldest of them has waited", lambda stats: stats.oldest or 0.0),
    "calls_in_flight": ("Calls or batches that workers have", lambda stats: stats.in_flight),
    "permits": ("Slots that may run calls", lambda stats: stats.permits),
}
_HISTOGRAMS: dict[str, tuple[str, Callable[[KeyStats], Buckets]]] = {
    "call_wait_seconds": ("From arrival, or a failed attempt, to a worker", lambda stats: stats.waits),
    "service_seconds": ("From a worker's taking a call or batch to its end", lambda stats: stats.services),
    "batch_size": ("Calls that were handed over together", lambda stats: stats.batch_sizes),
}


class DispatchCollector(Collector):
    """Reads a dispatcher's numbers at each scrape."""

    def __init__(self, stats: Callable[[], DispatchStats], prefix: str = "corosrv") -> None:
        """`prefix`: of the metrics' names, by which those of two dispatchers differ."""
        self._stats = stats
        self._prefix = prefix

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for name, (text, number) in _GAUGES.items():
            family = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=["key"])
            for key in stats.keys:
                family.add_metric([key.key], number(key))
            yield family
        for name, (text, buckets) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"{self._prefix}_{name}", text, labels=["key"])
            for key in stats.keys:
                histogram.add_metric([key.key], list(buckets(key).cumulative), buckets(key).sum)
            yield histogram
        yield _counter(f"{self._prefix}_requests", "Ended calls by outcome", "code", stats, lambda key: key.outcomes)
        yield _counter(
            f"{self._prefix}_retries", "Further attempts by reason", "reason", stats, lambda key: key.retries
        )
        budget = GaugeMetricFamily(f"{self._prefix}_retry_budget", "Attempts after a failure that are allowed now")
        budget.add_metric([], stats.retry_budget)
        yield budget


def _counter(
    name: str, text: str, label: str, stats: DispatchStats, counts: Callable[[KeyStats], dict[str, int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=["key", label])
    for key in stats.keys:
        for value, count in counts(key).items():
            family.add_metric([key.key, value], count)
    return family
