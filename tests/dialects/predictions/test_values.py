"""Values and files all the way: from a request's JSON through a real worker process and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import PredictionSettings
from corosrv.dialects.predictions import routes
from corosrv.dialects.predictions.service import PredictionService
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.sse import StreamLimits
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.support.file_server import FileServer, content
from tests.support.file_server import serving as serving_files
from tests.workers.worker.predicting import wait_for

PREDICTOR = Path(__file__).parents[2] / "predictors" / "typed.py"
PNG = "data:image/png;base64,aW1hZ2U="


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    """Of a service whose worker is set up once for all."""
    worker = PredictorProcess(WorkerConfig(predictor=f"{PREDICTOR}:Runner"))
    service = PredictionService(worker, PredictionSettings())
    app = Flask("tests")
    app.register_blueprint(routes.blueprint(service, lambda: None, BodyReader(), StreamLimits(HttpStats())))
    worker.start()
    try:
        wait_for(worker, WorkerState.READY)
        yield app.test_client()
    finally:
        service.shutdown(0)
        worker.kill()
        worker.stop(10)


@pytest.fixture
def files() -> Iterator[FileServer]:
    with serving_files() as server:
        yield server


def _predict(client: FlaskClient, status: int = 200, **given: Any) -> Any:
    with gevent.Timeout(20):
        answer = client.post("/predictions", json={"input": given})
    assert answer.status_code == status, answer.json
    return answer.json


def test_inputs_arrive_converted_and_outputs_come_back_with_their_files(client: FlaskClient, files: FileServer) -> None:
    files.answers["/note.txt"] = content(b"note")

    said = _predict(
        client, image=PNG, notes=[f"{files.url}/note.txt", "data:,two"], file="data:,three", key="hunter2",
        style="bold", scale=3, count=5.0
    )  # fmt: skip

    assert said["status"] == "succeeded"
    assert said["output"] == {
        "text": "image note two three hunter2 BOLD 3.0 5 ab",
        "image": PNG,
        "pages": [PNG, PNG],
        "more": {"score": None},
    }
    assert files.agents[0].startswith("corosrv/")


def test_what_is_left_out_gets_its_default(client: FlaskClient) -> None:
    assert _predict(client, image=PNG)["output"]["text"] == "image - default key PLAIN 1.0 None ab"
    assert _predict(client, image=PNG, count=None, file=None)["output"]["text"].endswith("PLAIN 1.0 None ab")


@pytest.mark.parametrize("image", ["/etc/passwd", "file:///etc/passwd", "../x", "", 3, None])
def test_no_file_of_the_server_can_be_named(client: FlaskClient, image: object) -> None:
    [fault] = _predict(client, 422, image=image)["detail"]

    assert (fault["loc"], fault["type"]) == (["body", "input", "image"], "value_error")


@pytest.mark.parametrize(
    ("image", "words"),
    [("data:;base64,!!!", "broken base64"), ("http://127.0.0.1:1/x", "Connection refused")],
)
def test_a_file_that_does_not_come_fails_the_prediction(client: FlaskClient, image: str, words: str) -> None:
    said = _predict(client, image=image)

    assert said["status"] == "failed"
    assert said["error"].startswith("InputFailed: image: ")
    assert words in said["error"]


def test_all_faults_are_told_at_once_and_no_secret_with_them(client: FlaskClient) -> None:
    answer = _predict(client, 422, notes=["data:,x", 7], key={"k": "hunter2"}, style="fat", scale=11)

    places = [fault["loc"][2:] for fault in answer["detail"]]
    assert places == [["image"], ["notes", 1], ["key"], ["style"], ["scale"]]
    assert "hunter2" not in str(answer)


def test_a_secret_is_masked_where_the_input_comes_back(client: FlaskClient) -> None:
    id = _predict(client, image=PNG, key="hunter2")["id"]

    assert client.get(f"/predictions/{id}").json["input"]["key"] == "**********"


def test_a_pattern_that_does_not_end_costs_a_second_and_no_more(client: FlaskClient) -> None:
    [fault] = _predict(client, 422, image=PNG, tag="a" * 50 + "c")["detail"]

    assert fault["loc"] == ["body", "input", "tag"]
    assert _predict(client, image=PNG, tag="abba")["output"]["text"].endswith("abba")
