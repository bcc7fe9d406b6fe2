"""Counters as Prometheus text."""

import gc

import gevent
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from corosrv.base.processor import garbage_times
from corosrv.web.http import metrics
from corosrv.web.http.metrics import EngineCollector, HttpStats
from tests.support.engines import answer, job, opened

ENGINE_FAMILIES = {f"corosrv_{name}" for name in ("jobs", "step_seconds", *metrics._COUNTERS, *metrics._GAUGES)} | {
    f"corosrv_{name}_seconds" for name in metrics._HISTOGRAMS
}


def exposed(stats: HttpStats) -> dict[str, list]:
    """Samples by the name of their family, read as Prometheus reads them."""
    families = text_string_to_metric_families(generate_latest(stats.registry).decode())
    return {family.name: family.samples for family in families}


class Worker:
    """Two models: one with this engine, one that is not loaded."""

    def __init__(self, engine) -> None:
        self._engine = engine

    def model_stats(self):
        stats = self._engine.stats()
        return {} if stats is None else {"one": stats}

    def model_states(self):
        return {"one": "ready", "other": "unloaded"}


@pytest.fixture
def stats() -> HttpStats:
    return HttpStats()


@pytest.fixture
def served(engine, stats) -> dict[str, list]:
    """Returns the exposition after two jobs."""
    stats.registry.register(EngineCollector(Worker(engine)))
    for _ in range(2):
        answer(engine, job("Hello"))
    return exposed(stats)


def value(samples: list, **labels: str) -> float:
    return next(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_the_garbage_collector_s_time_is_there(stats):
    garbage_times.watch()
    gc.collect()

    families = exposed(stats)
    longest = value(families["corosrv_garbage_longest_seconds"], generation="2")

    assert value(families["corosrv_garbage_collections"], generation="2") >= 1
    assert 0 < longest <= value(families["corosrv_garbage_seconds"], generation="2")


def test_jobs_are_counted_by_outcome(served):
    jobs = served["corosrv_jobs"]

    assert value(jobs, outcome="length") == 2
    assert {sample.labels["outcome"] for sample in jobs} == {"stop", "length", "cancelled", "error", "refused"}


def test_tokens_and_slots_are_there(served):
    assert value(served["corosrv_generated_tokens"]) == 16
    assert value(served["corosrv_prompt_tokens"]) == 10
    assert value(served["corosrv_slots"]) == 4


def test_every_series_of_a_decode_loop_says_which_model(served):
    labels = [sample.labels for name, family in served.items() if name in ENGINE_FAMILIES for sample in family]

    assert len(labels) > 30
    assert all(label["model"] == "one" for label in labels)


def test_each_model_s_state_is_there(served):
    assert value(served["corosrv_model_state"], model="one", state="ready") == 1
    assert value(served["corosrv_model_state"], model="other", state="unloaded") == 1


@pytest.mark.parametrize("name", ["queue_wait", "ttft", "itl"])
def test_histograms_are_cumulative_and_end_in_infinity(served, name):
    samples = served[f"corosrv_{name}_seconds"]
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]

    counts = [sample.value for sample in buckets]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    assert counts == sorted(counts)
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert counts[-1] == next(sample.value for sample in samples if sample.name.endswith("_count")) > 0


def test_an_engine_without_numbers_is_left_out(stats):
    with opened() as engine:
        stats.registry.register(EngineCollector(Worker(engine)))

    assert not any(name.startswith("corosrv_jobs") for name in exposed(stats))


def test_answers_are_counted_by_route_and_status(stats):
    for status in (200, 200, 404):
        stats.count_answer("/v1/models", status)

    requests = exposed(stats)["corosrv_http_requests"]
    assert value(requests, route="/v1/models", status="200") == 2
    assert value(requests, route="/v1/models", status="404") == 1


def test_the_hub_s_lateness_is_measured_while_a_stream_is_open(stats):
    gevent.get_hub()
    stats.stream_opened()
    gevent.sleep(0.3)
    stats.stream_closed()

    lag = exposed(stats)["corosrv_hub_lag_seconds"]
    assert next(sample.value for sample in lag if sample.name.endswith("_count")) >= 1


def test_streams_are_counted_up_and_down(stats):
    stats.stream_opened()
    stats.stream_opened()
    stats.stream_closed()

    assert value(exposed(stats)["corosrv_open_streams"]) == 1
    stats.stream_closed()
