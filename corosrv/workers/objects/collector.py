"""Offers the numbers of a store of objects to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.workers.objects.store import ObjectStore


class ObjectCollector(Collector):
    """Reads a store's numbers at each scrape."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        stats = self._store.stats
        yield GaugeMetricFamily("corosrv_objects", "Objects that are stored", stats.n_objects)
        yield GaugeMetricFamily("corosrv_objects_bytes", "Bytes of their contents", stats.n_bytes)
        yield CounterMetricFamily("corosrv_objects_evicted", "Objects removed to make room", stats.n_evicted)
        yield CounterMetricFamily(
            "corosrv_objects_expired", "Objects removed when their time was over", stats.n_expired
        )
