"""Prometheus metrics of the link to Redis and of the fronts that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.fleet.cluster.health import LinkHealth


class ClusterCollector(Collector):
    """Reads the numbers at each scrape."""

    def __init__(self, health: LinkHealth, n_others: Callable[[], int]) -> None:
        """`n_others`: counts the other fronts."""
        self._health = health
        self._n_others = n_others

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("corosrv_redis_up", "1 while Redis answers", self._health.is_up)
        yield CounterMetricFamily("corosrv_redis_losses", "Times that Redis was lost", self._health.n_losses)
        yield GaugeMetricFamily("corosrv_cluster_fronts", "Other fronts known through Redis", self._n_others())
