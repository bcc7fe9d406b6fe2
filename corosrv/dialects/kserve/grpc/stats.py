"""Numbers of the calls over gRPC, kept by the server, and their form for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.dialects.kserve.grpc.messages import GrpcCounts


class GrpcStats:
    """Sums what all gRPC processes of a front have counted. Belongs to the hub's thread."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()  # by method and code
        self.n_streams = 0  # that are open

    def add(self, counts: GrpcCounts) -> None:
        """Adds what a process tells."""
        for method, code, n in counts.ended:
            self.ended[method, code] += n
        self.n_streams = counts.n_streams

    def forget_streams(self) -> None:
        """Counts no stream as open: their process has ended."""
        self.n_streams = 0


class GrpcCollector(Collector):
    """Reads the numbers at each scrape."""

    def __init__(self, stats: GrpcStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        calls = CounterMetricFamily("corosrv_grpc_calls", "Ended calls by method and code", labels=["method", "code"])
        for (method, code), n in sorted(self._stats.ended.items()):
            calls.add_metric([method, code], n)
        yield calls
        streams = GaugeMetricFamily("corosrv_grpc_open_streams", "Open streams of ModelStreamInfer")
        streams.add_metric([], self._stats.n_streams)
        yield streams
