"""The text forms of counters: Prometheus' own, and OpenMetrics with exemplars."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from corosrv.contracts.jobs import ModelCard, Terms
from corosrv.contracts.jobs.worker import BOUNDS
from corosrv.contracts.metrics import Exemplar, Exemplars, JobExemplars
from corosrv.dialects.generation.job_usage import submit
from corosrv.serving import exposition
from corosrv.serving.exposition import OPEN_METRICS, PLAIN
from corosrv.serving.tracing import SpanMaker
from corosrv.web.http.metrics import EngineCollector, HttpStats
from corosrv.workers.dispatch.estimates import Distribution
from tests.support.engines import answer, job, read_all
from tests.web.http.test_metrics import Worker

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


class Timed:
    """A histogram of a Distribution."""

    def __init__(self) -> None:
        self.times = Distribution()

    def collect(self) -> Any:
        family = HistogramMetricFamily("corosrv_call_wait_seconds", "Waits", labels=["key"])
        family.add_metric(["add"], self.times.cumulative(), self.times.sum)
        return [family]


@pytest.fixture
def maker() -> Any:
    made = SpanMaker(lambda message: "")
    yield made
    made.close()


def begin(maker: SpanMaker, flags: str = "01", trace: str = "a") -> Any:
    parent = f"00-{trace * 32}-{'b' * 16}-{flags}"
    return maker.begin_request({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_TRACEPARENT": parent})


def exemplars(text: bytes, name: str) -> dict[str, Any]:
    """Exemplars by the bounds of their buckets, as an independent reader sees them."""
    families = {family.name: family for family in open_metrics(text.decode())}
    return {sample.labels["le"]: sample.exemplar for sample in families[name].samples if sample.exemplar}


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, PLAIN),
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        (PROMETHEUS, OPEN_METRICS),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text; version=1.0.0, */*;q=0.1", OPEN_METRICS),
        ("application/openmetrics-text; version=2.0.0, text/plain;q=0.1", PLAIN),
        ("application/openmetrics-text; q=0", PLAIN),
        ("application/openmetrics-text; q=0.2, text/plain; version=0.0.4", PLAIN),
        ("application/openmetrics-text; version=" + "1" * 9999, PLAIN),
        (";;,=,\x00", PLAIN),
    ],
)
def test_open_metrics_are_for_who_prefers_them(accept: str | None, form: exposition.TextForm) -> None:
    assert exposition.form_of(parse_accept_header(accept, MIMEAccept)) is form


def test_each_bucket_has_the_last_trace_that_is_sent(maker: SpanMaker) -> None:
    stats, timed = HttpStats(), Timed()
    stats.registry.register(timed)
    first, last, unwanted = begin(maker, trace="1"), begin(maker, trace="2"), begin(maker, "00", trace="3")
    for value, trace in ((0.5, first), (0.4, last), (0.3, unwanted), (7.0, first), (0.001, None)):
        timed.times.add(value, trace)

    found = exemplars(exposition.exposition(stats, OPEN_METRICS), "corosrv_call_wait_seconds")

    assert {bound: (one.labels["trace_id"][0], one.value) for bound, one in found.items()} == {
        "0.5": ("2", 0.4), "10": ("1", 7.0)
    }  # fmt: skip
    assert found["0.5"].labels["span_id"] in dict(last.headers())["traceparent"]
    assert all(float(one.timestamp) > 1e9 for one in found.values())
    traced, timed.times.exemplars = PLAIN.write(timed), None
    assert traced == PLAIN.write(timed)
    assert b'corosrv_call_wait_seconds_bucket{key="add",le="0.5"} 4.0\n' in traced


def test_open_metrics_have_units_and_one_end() -> None:
    stats = HttpStats()
    stats.count_answer("/health", 200)

    text = exposition.together([exposition.of_front(stats, n, OPEN_METRICS) for n in (1, 2)], OPEN_METRICS)

    families = {family.name: family for family in open_metrics(text.decode())}
    assert text.count(b"# EOF\n") == 1
    assert text.endswith(b"\n# EOF\n")
    assert families["corosrv_hub_lag_seconds"].unit == "seconds"
    assert families["process_resident_memory_bytes"].unit == "bytes"
    assert [sample.labels["front"] for sample in families["corosrv_open_streams"].samples] == ["1", "2"]
    assert b'corosrv_http_requests_total{front="2",route="/health",status="200"} 1.0\n' in text


def test_a_job_s_times_are_exemplars_of_its_model_s_histograms(engine: Any, maker: SpanMaker) -> None:
    stats = HttpStats()
    stats.registry.register(EngineCollector(Worker(engine), maker.job_exemplars))
    answer(engine, job("Hello"))
    begin(maker).note_job("one", 0.0, BOUNDS[0])
    begin(maker).note_job("one", BOUNDS[-1], 30.0)
    begin(maker, "00").note_job("one", 0.1, 0.1)

    text = exposition.exposition(stats, OPEN_METRICS)

    assert set(exemplars(text, "corosrv_queue_wait_seconds")) == {"0.001", "16.384"}
    assert set(exemplars(text, "corosrv_ttft_seconds")) == {"0.001", "+Inf"}
    assert exemplars(text, "corosrv_itl_seconds") == {}


class AdapterWorker:
    """A model's adapter, which this engine runs."""

    def __init__(self, engine: Any) -> None:
        self.submit = engine.submit

    def card(self, model: str | None) -> ModelCard:
        return ModelCard("adapter", 0, parent="one")


def test_a_job_is_timed_to_its_first_token_for_the_model_that_runs_it(engine: Any, maker: SpanMaker) -> None:
    began = time.monotonic()
    traced = job("Hello", max_tokens=8, stream=True, terms=Terms(trace=begin(maker)))
    reader, record = submit(AdapterWorker(engine), traced, as_json=False)  # type: ignore[arg-type]
    chunks = reader.take(30)
    record.add(chunks)
    until_first = time.monotonic() - began
    rest = read_all(reader)
    record.add(rest)
    total = time.monotonic() - began

    waits, firsts = (dict(maker.job_exemplars["one", name].items()) for name in ("queue_wait", "ttft"))
    ((bucket, first),) = firsts.items()
    ((_, wait),) = waits.items()
    assert 0 <= wait.value <= first.value <= min(until_first, total - [*chunks, *rest][-1].decode_ms / 1000)
    assert first.value <= BOUNDS[bucket]
    assert first.labels["trace_id"] == "a" * 32
    assert set(maker.job_exemplars) == {("one", "queue_wait"), ("one", "ttft")}


def test_a_process_takes_newer_exemplars_from_another() -> None:
    old, new = (Exemplar({"trace_id": name}, 0.5, when) for name, when in (("old", 1.0), ("new", 2.0)))
    here: JobExemplars = {("one", "ttft"): Exemplars(BOUNDS)}
    there: JobExemplars = {("one", "ttft"): Exemplars(BOUNDS), ("two", "ttft"): Exemplars(BOUNDS)}
    for bucket, ours, theirs in ((1, old, new), (2, new, old)):
        here["one", "ttft"].adopt(bucket, ours)
        there["one", "ttft"].adopt(bucket, theirs)
    there["two", "ttft"].adopt(3, old)

    text = exposition.take_exemplars(exposition.with_exemplars(b"a 1\n# EOF\n", there), here)

    assert text == b"a 1\n# EOF\n"
    assert dict(here["one", "ttft"].items()) == {1: new, 2: new}
    assert dict(here["two", "ttft"].items()) == {3: old}
    assert exposition.take_exemplars(text, here) == text


def test_the_counters_of_several_processes_stand_together_and_say_whose_they_are() -> None:
    fronts = []
    for number in (1, 2):
        stats = HttpStats()
        for _ in range(number):
            stats.count_answer("/health", 200)
        fronts.append(exposition.of_front(stats, number))

    text = exposition.together(fronts)

    families = [family.name for family in text_string_to_metric_families(text.decode())]
    assert len(families) == len(set(families))
    assert b'corosrv_http_requests_total{front="1",route="/health",status="200"} 1.0\n' in text
    assert b'corosrv_http_requests_total{front="2",route="/health",status="200"} 2.0\n' in text
    samples = {family.name: family.samples for family in text_string_to_metric_families(text.decode())}
    assert [sample.labels for sample in samples["corosrv_open_streams"]] == [{"front": "1"}, {"front": "2"}]


def test_counters_that_processes_share_are_not_among_those_of_one(engine: Any) -> None:
    stats = HttpStats()
    stats.engines.register(EngineCollector(Worker(engine)))

    assert b"corosrv_model_state" not in exposition.of_front(stats, 1)
    assert b'corosrv_model_state{model="one",state="ready"} 1.0' in exposition.exposition(stats)
