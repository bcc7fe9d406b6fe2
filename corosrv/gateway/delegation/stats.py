"""Counts what became of requests that this server could not serve, and metrics of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Result(str, Enum):
    """Results of a request that this server could not serve."""

    ANSWERED = "answered"  # by a peer
    REFUSED = "refused"  # by each peer that was asked: they could not serve it either
    LOST = "lost"  # a peer had it and did not answer, or not to the end
    CANCELLED = "cancelled"  # its client left
    NO_PEER = "no_peer"  # none serves it that has not seen it
    FULL = "full"  # peers answer delegate_max requests already
    HOP_LIMIT = "hop_limit"  # it had come from too far


class DelegationStats:
    """Holds the counts."""

    def __init__(self) -> None:
        self.results: Counter[Result] = Counter()
        self.n_loops = 0  # requests that came back
        self.in_flight = 0


class DelegationCollector(Collector):
    """Reads the counts at each scrape."""

    def __init__(self, stats: DelegationStats, count_ready: Callable[[], int]) -> None:
        """`count_ready`: tells how many peers are ready."""
        self._stats = stats
        self._count_ready = count_ready

    def collect(self) -> Iterable[Metric]:
        delegated = CounterMetricFamily(
            "corosrv_delegated", "Requests that could not be served here, by what became of them", labels=["result"]
        )
        for result in Result:
            delegated.add_metric([result.value], self._stats.results[result])
        yield delegated
        yield CounterMetricFamily("corosrv_delegation_loops", "Requests refused as seen before", self._stats.n_loops)
        yield GaugeMetricFamily("corosrv_delegated_in_flight", "Requests that peers answer", self._stats.in_flight)
        yield GaugeMetricFamily("corosrv_peers_ready", "Peers that may be asked", self._count_ready())
