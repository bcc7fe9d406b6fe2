"""Prometheus metrics of a prediction service."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.dialects.predictions.health import PredictorHealth
from corosrv.dialects.predictions.service import PredictionService

# The service never stays UNHEALTHY: it answers so when the predictor's own check fails.
_STATES = [state for state in PredictorHealth if state is not PredictorHealth.UNHEALTHY]


class PredictionCollector(Collector):
    """Reads the service's counts at each scrape. `n_restarts` returns how many workers replaced one that died."""

    def __init__(self, service: PredictionService, n_restarts: Callable[[], int]) -> None:
        self._service = service
        self._n_restarts = n_restarts

    def collect(self) -> Iterable[Metric]:
        stats = self._service.stats()
        yield _gauge("corosrv_predictor_state", "1: the predictor is there", "state", self._states())
        slots = {"free": stats.slots.free, "busy": stats.slots.busy, "poisoned": stats.slots.poisoned}
        yield _gauge("corosrv_prediction_slots", "Slots of the predictor's worker", "state", slots)
        running = GaugeMetricFamily("corosrv_predictions_running", "Predictions taken that have not ended")
        running.add_metric([], stats.n_running)
        yield running
        yield _counter("corosrv_predictions", "Ended predictions by status", "status", stats.n_ended)
        yield _single("corosrv_predictions_refused", "Predictions refused for want of a free slot", stats.n_refused)
        hooks = stats.webhooks
        outcomes = {"delivered": hooks.delivered, "failed": hooks.failed, "retried": hooks.retried}
        yield _counter("corosrv_webhooks", "Webhooks by what became of them", "outcome", outcomes)
        yield _single("corosrv_predictor_restarts", "Workers started in place of one that died", self._n_restarts())

    def _states(self) -> dict[str, int]:
        current = self._service.health
        return {state.value.lower(): int(state is current) for state in _STATES}


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=[label]), values)


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=[label]), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, int]) -> Metric:
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _single(name: str, text: str, count: int) -> Metric:
    family = CounterMetricFamily(name, text)
    family.add_metric([], count)
    return family
