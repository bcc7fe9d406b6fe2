"""Prometheus metrics of the answers that are kept under idempotency keys."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.web.http.keyed_answers import KeyedAnswers


class KeyCollector(Collector):
    """Reads the numbers of kept answers at each scrape."""

    def __init__(self, answers: KeyedAnswers) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        answers = self._answers
        yield GaugeMetricFamily(
            "corosrv_idempotency_records", "Requests known by their Idempotency-Key", answers.n_records
        )
        yield GaugeMetricFamily("corosrv_idempotency_bytes", "Bytes that they and their answers take", answers.n_bytes)
        yield CounterMetricFamily(
            "corosrv_idempotency_replays", "Requests answered with the answer of an earlier one", answers.n_replayed
        )
