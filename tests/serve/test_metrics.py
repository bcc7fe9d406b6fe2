"""GET /metrics: what is counted, and that it is what happened."""

from __future__ import annotations

import re
from typing import Any

import pytest

from corosrv.dialects.llamacpp.metrics import LlamaCollector
from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually

COUNTERS = ["prompt_tokens", "generated_tokens", "steps", "eventfd_writes", "step_seconds", "jobs", "http_requests"]
GAUGES = ["slots", "running", "waiting", "paused", "readers", "open_streams"]
HISTOGRAMS = ["queue_wait_seconds", "ttft_seconds", "itl_seconds", "hub_lag_seconds"]


@pytest.fixture
def text(server: Server) -> str:
    with server.connect() as connection:
        connection.post(chat(max_tokens=2))
        answer = connection.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.body.decode()


@pytest.mark.parametrize(
    ("kind", "names"), [("counter", COUNTERS), ("gauge", GAUGES), ("histogram", HISTOGRAMS)], ids=lambda x: str(x)[:9]
)
def test_every_metric_has_its_help_and_its_type(text: str, kind: str, names: list[str]) -> None:
    for name in names:
        full = f"corosrv_{name}" + ("_total" if kind == "counter" else "")
        assert f"# TYPE {full} {kind}\n" in text
        assert re.search(rf"^# HELP {full} \w", text, re.MULTILINE)


def test_llama_server_s_metrics_are_of_its_types(text: str) -> None:
    for name, kind in {"n_tokens_max": "counter", "n_decode_total": "counter", "requests_deferred": "gauge"}.items():
        assert f"# TYPE llamacpp:{name} {kind}\n" in text


def test_llama_server_s_metrics_stay_while_no_model_is_loaded(start: Servers) -> None:
    server = start.start(model="synthetic:?tokens_per_s=200")

    def told() -> dict[str, float]:
        return {name: value for name, value in server.metrics().items() if name.startswith("llamacpp:")}

    before = told()
    with server.connect() as connection:
        connection.post(chat(max_tokens=10))
        server.wait_idle()
        loaded = told()
        assert connection.post({"model": "synthetic"}, "/models/unload").status == 200
        eventually(lambda: connection.ask("GET", "/props").json["is_sleeping"], what="an unloaded model")
        unloaded = told()

    assert set(before) == set(loaded) == set(unloaded) != set()
    assert unloaded["llamacpp:tokens_predicted_total"] == 10
    rates = ("llamacpp:predicted_tokens_seconds", "llamacpp:prompt_tokens_seconds", "llamacpp:n_busy_slots_per_decode")
    for name in rates:
        assert unloaded[name] == loaded[name] > 0


class NoModels:
    """A worker whose models were never loaded."""

    def model_stats(self) -> dict[str, Any]:
        return {}


def test_llama_server_s_metrics_are_there_before_a_model_is_loaded() -> None:
    told = {sample.name: sample.value for family in LlamaCollector(NoModels()).collect() for sample in family.samples}

    assert told["llamacpp:predicted_tokens_seconds"] == told["llamacpp:tokens_predicted_total"] == 0
    assert told["llamacpp:requests_deferred"] == told["llamacpp:n_tokens_max"] == 0


def test_the_page_is_told_of_in_the_properties(start: Servers) -> None:
    for page in (0, 1):
        with start.start(page=page).connect() as connection:
            assert connection.ask("GET", "/props").json["ui"] is bool(page)


def test_histograms_only_rise_and_end_with_all(text: str) -> None:
    for name in HISTOGRAMS:
        counts = [float(n) for n in re.findall(rf"^corosrv_{name}_bucket{{[^}}]*}} (\S+)$", text, re.MULTILINE)]
        assert len(counts) > 5
        assert counts == sorted(counts)
        assert re.findall(rf"^corosrv_{name}_count\S* (\S+)$", text, re.MULTILINE) == [str(counts[-1])]


def test_known_traffic_is_counted(start: Servers) -> None:
    server = start.start(slots=2)
    with server.connect() as connection:
        for _ in range(3):
            connection.post(chat(max_tokens=10))
        connection.post(chat(max_tokens=10, stream=True))
        connection.post(chat(max_tokens=5, n=2))
        connection.post(b"{}")
        connection.ask("GET", "/nowhere")
    server.wait_idle()
    metrics = server.metrics()

    length = len("user: hi\nassistant:")
    assert metrics['corosrv_jobs_total{outcome="length"}'] == 6
    assert metrics["corosrv_generated_tokens_total"] == 50
    assert 4 * length < metrics["corosrv_prompt_tokens_total"] <= 6 * length
    assert metrics["corosrv_ttft_seconds_count"] == metrics["corosrv_queue_wait_seconds_count"] == 6
    assert metrics["corosrv_itl_seconds_count"] == 50 - 6
    assert 0.015 < metrics["corosrv_itl_seconds_sum"] / 44 < 0.2
    assert 0 < metrics["corosrv_eventfd_writes_total"] <= 50
    assert metrics["corosrv_steps_total"] <= 50
    assert metrics["corosrv_slots"] == 2
    route = 'corosrv_http_requests_total{route="/v1/chat/completions",status="%d"}'
    assert (metrics[route % 200], metrics[route % 400]) == (5, 1)
    assert metrics['corosrv_http_requests_total{route="none",status="404"}'] == 1


def test_gauges_show_what_goes_on_now(start: Servers) -> None:
    server = start.start(slots=2)
    asking = [server.connect() for _ in range(5)]
    for connection in asking:
        connection.send(request("POST", CHAT, chat(stream=True)))
    server.wait_metric("running", 2)
    server.wait_metric("waiting", 3)
    metrics = server.metrics()

    assert [metrics[f"corosrv_{name}"] for name in ("running", "readers", "open_streams")] == [2, 5, 5]
    for connection in asking:
        connection.leave()
    server.wait_idle()


def test_metrics_can_be_switched_off(start: Servers) -> None:
    server = start.start(metrics=0)

    status, body = server.get("/metrics")

    assert status == 501
    assert "COROSRV_METRICS" in body["error"]["message"]
