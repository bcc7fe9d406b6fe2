"""The numbers of a dispatcher and its keys, for the management API, the Worker Manager and Prometheus.

Labels are keys and words of this server, never what a client wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.contracts.metrics import Bucket, metric, metrics_of
from corosrv.workers.dispatch.key_queue import KeyQueue


@dataclass(frozen=True, slots=True)
class Buckets:
    """Holds a histogram: how many values did not exceed each bound, and the sum of all."""

    cumulative: tuple[Bucket, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class KeyStats:
    """Holds the numbers of one key. Times are in seconds; None: nothing was measured, or nothing waits."""

    key: str
    state: str  # READY, LOADING or UNAVAILABLE
    pools: tuple[str, ...]  # that serve it or may
    depth: int
    max_depth: int
    oldest: float | None  # how long the call has waited that waits longest
    in_flight: int  # hand-overs: calls or batches
    permits: int
    wait_mean: float | None
    service_mean: float | None
    arrival_rate: float  # calls per second, over some 10 s
    slo: float
    n_admitted: int
    n_dispatched: int
    n_left: int
    outcomes: dict[str, int]
    retries: dict[str, int]
    waits: Buckets
    services: Buckets
    batch_sizes: Buckets
    classes: dict[int, int]  # calls that wait in this process, by their class: 1 before 9


@dataclass(frozen=True, slots=True)
class DispatchStats:
    """Holds the numbers of all keys that are known or were called, and those that they share."""

    keys: tuple[KeyStats, ...]
    n_calls: int  # that have not ended
    n_waiting: int
    n_waiting_bytes: int
    retry_budget: float  # retries that are allowed now


def key_stats(queue: KeyQueue, oldest: float | None, now: float) -> KeyStats:
    """Takes the numbers of one key. `oldest`: when the call arrived that has waited longest."""
    entry, traffic = queue.entry, queue.traffic
    served_by = {group.host.id.rpartition("/")[0] for group in entry.groups}
    return KeyStats(
        key=entry.key,
        state=entry.state(),
        pools=tuple(sorted(served_by | entry.pools.keys())),
        depth=queue.depth,
        max_depth=entry.card.max_queue,
        oldest=None if oldest is None else max(now - oldest, 0.0),
        in_flight=traffic.n_in_flight,
        permits=entry.n_permits,
        wait_mean=traffic.wait.value,
        service_mean=traffic.service.value,
        arrival_rate=traffic.rate.value(now),
        slo=entry.card.slo_ms / 1000,
        n_admitted=traffic.n_admitted,
        n_dispatched=traffic.n_dispatched,
        n_left=traffic.n_left,
        outcomes=dict(traffic.outcomes),
        retries=dict(traffic.retries),
        waits=Buckets(tuple(traffic.waits.cumulative()), traffic.waits.sum),
        services=Buckets(tuple(traffic.services.cumulative()), traffic.services.sum),
        batch_sizes=Buckets(tuple(traffic.batch_sizes.cumulative()), traffic.batch_sizes.sum),
        classes=queue.classes(now),
    )


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
        yield from metrics_of(
            GaugeMetricFamily, f"{self._prefix}_", _GAUGES, ["key"], (([key.key], key) for key in stats.keys)
        )
        for name, (text, buckets) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"{self._prefix}_{name}", text, labels=["key"])
            for key in stats.keys:
                histogram.add_metric([key.key], list(buckets(key).cumulative), buckets(key).sum)
            yield histogram
        ended = (([key.key, code], n) for key in stats.keys for code, n in key.outcomes.items())
        yield metric(CounterMetricFamily, f"{self._prefix}_requests", "Ended calls by outcome", ["key", "code"], ended)
        retries = (([key.key, reason], n) for key in stats.keys for reason, n in key.retries.items())
        yield metric(
            CounterMetricFamily, f"{self._prefix}_retries", "Further attempts by reason", ["key", "reason"], retries
        )
        words = "Attempts after a failure that are allowed now"
        yield GaugeMetricFamily(f"{self._prefix}_retry_budget", words, stats.retry_budget)
