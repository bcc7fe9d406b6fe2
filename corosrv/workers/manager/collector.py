"""Reads the numbers of pools and workers when Prometheus asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.workers.manager.manager import Manager
from corosrv.workers.manager.place import Place


class ManagerCollector(Collector):
    """Keeps no numbers of its own. Labels are pools and places, never process ids."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterable[Metric]:
        yield from self._of_workers(self._manager.shown_places)
        yield from self._of_pools()

    def _of_workers(self, places: Iterable[Place]) -> Iterator[Metric]:
        state = GaugeMetricFamily("corosrv_worker_state", "1: the worker is there", labels=["worker", "pool", "state"])
        in_flight = GaugeMetricFamily("corosrv_worker_in_flight", "Slots that run a call", labels=["worker", "pool"])
        rss = GaugeMetricFamily("corosrv_worker_rss_bytes", "Memory of the process", labels=["worker", "pool"])
        for place in places:
            assert place.worker is not None
            state.add_metric([place.id, place.pool, place.state.value], 1)
            in_flight.add_metric([place.id, place.pool], place.worker.in_flight)
            rss.add_metric([place.id, place.pool], place.worker.rss)
        return iter((state, in_flight, rss))

    def _of_pools(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "corosrv_worker_restarts", "Workers that ended and were replaced", labels=["pool", "reason"]
        )
        expired = CounterMetricFamily("corosrv_lease_expired", "Workers lost for want of a heartbeat", labels=["pool"])
        gauges = {
            name: GaugeMetricFamily(f"corosrv_pool_{name}", text, labels=["pool"])
            for name, text in (
                ("min", "Workers at least"),
                ("max", "Workers at most"),
                ("target", "Workers that there should be"),
                ("crashlooping", "1: its workers crash again and again"),
            )
        }
        for pool in self._manager.pools:
            for reason, n in pool.restarts.items():
                restarts.add_metric([pool.name, reason], n)
            expired.add_metric([pool.name], pool.restarts["lease_expired"])
            memory = pool.memory
            values = (memory.least, memory.most, memory.target, int(memory.crashes.is_looping))
            for gauge, value in zip(gauges.values(), values, strict=True):
                gauge.add_metric([pool.name], value)
        return iter((restarts, expired, *gauges.values()))
