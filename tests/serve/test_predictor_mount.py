"""A predictor in somebody's own Flask app, below a prefix of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import GUNICORN
from tests.support.predictors import ASYNC, STREAM, PredictorServer, parse_events, serving_predictor
from tests.support.waiting import eventually

OWN: dict[str, Any] = {"command": (*GUNICORN, "-b", "127.0.0.1:0", "tests.serve.predictor_app:app"), "prefix": "/mine"}
KINDS = ["start", "log", "output", "output", "completed"]


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[PredictorServer]:
    """Set up with the first request that arrives."""
    with serving_predictor(
        tmp_path_factory.mktemp("mounted"), "streams.py:Predictor", **OWN, XDG_CACHE_HOME=cache
    ) as server:
        yield server


def test_predictions_are_answered_below_the_prefix(mounted: PredictorServer) -> None:
    assert mounted.predict({"n": 2}).json["output"] == ["number 0", "number 1"]
    assert mounted.ask("GET", "/").json["predictions_url"] == "/mine/predictions"
    assert mounted.ask("GET", "/openapi.json").json["components"]["schemas"]["Input"]["properties"]["n"]


def test_streams_and_cancels_work_below_it(mounted: PredictorServer) -> None:
    with mounted.begin({"n": 2}, STREAM) as connection:
        head = connection.head()
        events = parse_events(b"".join(connection.body(head)))
    mounted.put("endless", {"gate": str(mounted.gate("never"))}, ASYNC)
    mounted.wait_for("endless", "processing")

    assert [event["event"] for event in events if event["event"] != "metric"] == KINDS
    assert mounted.cancel("endless").status == 200
    mounted.wait_for("endless", "canceled")


def test_the_apps_own_pages_stay_its_own(mounted: PredictorServer) -> None:
    with mounted.connect() as connection:
        ping = connection.ask("GET", "/ping")
        missing = connection.ask("GET", "/predictions")

    assert ping.json == {"pong": True}
    assert missing.status == 404
    assert missing.headers["content-type"].startswith("text/html")


def test_errors_below_the_prefix_are_those_of_predictions(mounted: PredictorServer) -> None:
    assert mounted.predict({"n": "three"}).json["detail"][0]["loc"] == ["body", "input", "n"]
    assert set(mounted.get("unknown").json) == {"error"}


def test_a_shutdown_ends_the_predictor_and_leaves_the_app(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", **OWN)
    worker = server.worker

    server.ask("POST", "/shutdown")
    eventually(lambda: not worker.is_alive, what="the worker's end")

    assert server.predict({}).status == 503
    with server.connect() as connection:
        assert connection.ask("GET", "/ping").status == 200
