"""A predictor and a model in one server: each answers under its own paths, and the rest tells of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.server import SERVE
from tests.serve.wire import chat
from tests.support.predictors import ASYNC, PredictorServer, serving_predictor
from tests.support.waiting import eventually

KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[PredictorServer]:
    folder = tmp_path_factory.mktemp("both")
    with serving_predictor(
        folder, "streams.py:Predictor", command=SERVE, model="synthetic:?tokens_per_s=500", XDG_CACHE_HOME=cache
    ) as server:
        server.process.wait_until("ok")
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[PredictorServer]:
    folder = tmp_path_factory.mktemp("guarded")
    with serving_predictor(folder, "tasks.py:Predictor", api_keys="secret", XDG_CACHE_HOME=cache) as server:
        yield server


def test_both_answer(both: PredictorServer) -> None:
    with both.connect() as connection:
        said = connection.post(chat(max_tokens=3))
    predicted = both.predict({"n": 2})

    assert said.json["choices"][0]["message"]["content"]
    assert predicted.json["output"] == ["number 0", "number 1"]


def test_a_prediction_that_waits_does_not_hold_the_model_up(both: PredictorServer) -> None:
    gate = both.gate("shut")
    both.put("waits", {"gate": str(gate)}, ASYNC)
    both.wait_for("waits", "processing")

    with both.connect() as connection:
        said = connection.post(chat(max_tokens=3))
    running = both.get("waits").json["status"]
    gate.open()

    assert (said.status, running) == (200, "processing")
    both.wait_for("waits", "succeeded")


def test_one_document_describes_both(both: PredictorServer) -> None:
    document = both.ask("GET", "/openapi.json").json

    assert {"/v1/chat/completions", "/metrics", "/predictions", "/predictions/{prediction_id}"} <= set(
        document["paths"]
    )
    assert document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert list(document["components"]["schemas"]["Input"]["properties"]) == ["n", "gate", "fails", "seconds"]


def test_metrics_tell_of_both(both: PredictorServer) -> None:
    before = both.process.metrics()
    both.predict({"n": 1})
    both.predict({"n": 1, "fails": True})
    with both.connect() as connection:
        connection.post(chat(max_tokens=3))
    after = both.process.metrics()

    def grew(name: str) -> float:
        return after[f"corosrv_{name}"] - before[f"corosrv_{name}"]

    assert grew('predictions_total{status="succeeded"}') == 1
    assert grew('predictions_total{status="failed"}') == 1
    assert grew('jobs_total{outcome="length"}') == 1
    assert after['corosrv_predictor_state{state="ready"}'] == 1
    assert after['corosrv_prediction_slots{state="free"}'] == 1
    assert after["corosrv_predictions_running"] == 0
    assert after["corosrv_predictor_restarts_total"] == 0


def test_refusals_are_counted(both: PredictorServer) -> None:
    gate = both.gate("full")
    before = both.process.metric("predictions_refused_total")
    both.put("fills", {"gate": str(gate)}, ASYNC)

    refused = both.predict({"n": 1})
    gate.open()

    assert refused.status == 409
    assert both.process.metric("predictions_refused_total") == before + 1
    both.wait_for("fills", "succeeded")


def test_errors_have_the_shape_of_those_that_were_asked(both: PredictorServer) -> None:
    of_predictions = both.ask("DELETE", "/predictions")
    of_models = both.ask("DELETE", "/v1/models")

    assert of_predictions.status == of_models.status == 405
    assert set(of_predictions.json) == {"error"}
    assert of_predictions.headers["allow"]
    assert of_models.json["error"]["type"]


def test_health_is_of_the_whole(both: PredictorServer) -> None:
    assert both.process.health() == "ok"
    assert both.health()["status"] == "READY"
    assert both.ask("GET", "/").json["predictions_url"] == "/predictions"


def test_predictions_need_the_key(guarded: PredictorServer) -> None:
    for method, path in [
        ("POST", "/predictions"),
        ("PUT", "/predictions/x"),
        ("GET", "/predictions/x"),
        ("POST", "/predictions/x/cancel"),
        ("GET", "/openapi.json"),
        ("POST", "/shutdown"),
        ("GET", "/nowhere"),
    ]:
        assert guarded.ask(method, path).status == 401, path
    assert guarded.process.is_running
    assert guarded.predict({"text": "hi"}, KEY).json["output"] == "hi"


def test_what_says_how_the_server_is_needs_no_key(guarded: PredictorServer) -> None:
    assert guarded.health()["status"] == "READY"
    assert guarded.ask("GET", "/").status == 200
    assert guarded.process.health() == "ok"


def test_a_model_serves_on_when_the_predictor_is_gone(tmp_path: Path, cache: Path) -> None:
    with serving_predictor(
        tmp_path, "tasks.py:Predictor", model="synthetic:?tokens_per_s=500", XDG_CACHE_HOME=cache
    ) as server:
        server.process.wait_until("ok")

        server.worker.kill()
        eventually(lambda: server.health()["status"] == "DEFUNCT")
        with server.connect() as connection:
            said = connection.post(chat(max_tokens=3))

        assert said.status == 200
        assert server.predict({}).status == 503
        assert server.process.health() == "failed"
