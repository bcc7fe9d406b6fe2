"""Prometheus metrics of upstreams. Labels are ids, hosts and words of this server: no keys, and nothing of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.fleet.upstreams.upstream import Upstream, UpstreamState
from corosrv.workers.dispatch.estimates import Distribution

_LABELS = ("upstream", "host")
_GAUGES: dict[str, tuple[str, Callable[[Upstream], float]]] = {
    "permits": ("Calls that the upstream may run at once", lambda upstream: upstream.permits.total),
    "in_flight": ("Calls that it runs", lambda upstream: upstream.in_flight),
    "idle_connections": ("Open connections that no call is on", lambda upstream: upstream.connections.n_idle),
}
_COUNTERS: dict[str, tuple[str, Callable[[Upstream], float]]] = {
    "ok": ("Calls that it answered", lambda upstream: upstream.stats.ok),
    "aborted": ("Calls that were ended before their answer was whole", lambda upstream: upstream.stats.aborted),
    "first_bytes": ("Answers that it began", lambda upstream: upstream.stats.n_first_bytes),
    "first_byte_seconds": ("Time until it began them", lambda upstream: upstream.stats.first_bytes.sum),
    "call_seconds": ("Time until its calls ended", lambda upstream: upstream.stats.durations.sum),
    "answer_bytes": ("Bytes of the bodies of its answers", lambda upstream: upstream.stats.n_bytes),
    "tokens": ("Tokens of its answers, of those that tell", lambda upstream: upstream.stats.n_tokens),
    "token_seconds": ("Time until the answers that tell their tokens ended", lambda upstream: upstream.stats.token_s),
    "aborts_sent": ("Requests to its abort endpoint that it took", lambda upstream: upstream.aborter.n_sent),
    "aborts_failed": ("Those that it did not take", lambda upstream: upstream.aborter.n_failed),
}

_HISTOGRAMS: dict[str, tuple[str, Callable[[Upstream], Distribution]]] = {
    "ttfb_seconds": (
        "From a call's start to the first byte of its answer",
        lambda upstream: upstream.stats.first_bytes,
    ),
    "duration_seconds": ("From a call's start to its end, however it ended", lambda upstream: upstream.stats.durations),
}


class UpstreamCollector(Collector):
    """Reads the numbers of all upstreams at each scrape."""

    def __init__(self, find_upstreams: Callable[[], Sequence[Upstream]]) -> None:
        self._find_upstreams = find_upstreams

    def collect(self) -> Iterable[Metric]:
        upstreams = self._find_upstreams()
        states = GaugeMetricFamily(
            "corosrv_upstream_state", "1 for the state that the upstream is in", labels=[*_LABELS, "state"]
        )
        failed = CounterMetricFamily("corosrv_upstream_failed", "Calls that failed", labels=[*_LABELS, "reason"])
        for upstream in upstreams:
            for state in UpstreamState:
                states.add_metric([*_labels_of(upstream), state.value], upstream.state is state)
            for reason, count in upstream.stats.failed.items():
                failed.add_metric([*_labels_of(upstream), reason], count)
        yield from (states, failed)
        for name, (text, distribution) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"corosrv_upstream_{name}", text, labels=_LABELS)
            for upstream in upstreams:
                values = distribution(upstream)
                histogram.add_metric(_labels_of(upstream), values.cumulative(), values.sum)
            yield histogram
        for name, (text, number) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"corosrv_upstream_{name}", text, labels=_LABELS)
            for upstream in upstreams:
                gauge.add_metric(_labels_of(upstream), number(upstream))
            yield gauge
        for name, (text, number) in _COUNTERS.items():
            counter = CounterMetricFamily(f"corosrv_upstream_{name}", text, labels=_LABELS)
            for upstream in upstreams:
                counter.add_metric(_labels_of(upstream), number(upstream))
            yield counter


def _labels_of(upstream: Upstream) -> tuple[str, str]:
    return upstream.id, urlsplit(upstream.spec.url).netloc
