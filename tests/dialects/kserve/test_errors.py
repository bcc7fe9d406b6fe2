"""The table of errors: what happened, and what a client over REST sees of it."""

from __future__ import annotations

import time

import pytest
from flask import g
from flask.testing import FlaskClient

from corosrv.base import errors
from corosrv.base.errors import CorosrvError
from tests.dialects.kserve.app import MAX_BODY, make_app
from tests.dialects.kserve.generator_worker import GeneratorWorker

ECHO = "/v2/models/echo/infer"
EMPTY = {"inputs": []}

TABLE = [
    (errors.CallRefused("the picture is too small"), 400, None),
    (errors.InvalidTensor("a", "is missing"), 400, None),
    (errors.NotFound("there is no model 'x'"), 404, None),
    (errors.Conflict("two models match alike: a, b"), 409, None),
    (errors.QueueFull("64 calls wait already"), 429, "1"),
    (errors.HandlerFailed("the handler failed"), 500, None),
    (errors.NotOffered("the model only streams"), 501, None),
    (errors.WorkerLost("the worker was lost"), 502, None),
    (errors.Unavailable("no worker is ready"), 503, "1"),
    (errors.ShuttingDown("the server is stopping"), 503, "1"),
    (errors.DeadlinePassed("the call's time is over"), 504, None),
]


@pytest.mark.parametrize(("error", "status", "retry_after"), TABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("is_late", [False, True])
def test_every_error_has_its_status_and_its_words(
    client: FlaskClient,
    worker: GeneratorWorker,
    error: CorosrvError,
    status: int,
    retry_after: str | None,
    is_late: bool,
):
    def fail(request):
        raise error
        yield

    model = worker.models["model:echo:"]
    model.error, model.handler = (None, fail) if is_late else (error, model.handler)

    answer = client.post(ECHO, json=EMPTY)

    assert (answer.status_code, answer.json) == (status, {"error": str(error)})
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers.get("Retry-After") == retry_after
    assert (answer.headers.get("Connection") == "close") is isinstance(error, errors.ShuttingDown)


def test_a_handlers_own_words_stay_secret(client: FlaskClient):
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}

    answer = client.post("/v2/models/words/infer", json=body | {"parameters": {"fail_after": 0}})

    assert (answer.status_code, answer.json) == (500, {"error": "the handler failed"})


def test_a_time_out_is_kept(client: FlaskClient):
    body = {"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [30]}]}

    for more, headers in (({"parameters": {"timeout": 20_000}}, {}), ({}, {"X-Request-Timeout-Ms": "20"})):
        answer = client.post("/v2/models/sleep/infer", json=body | more, headers=headers)
        assert answer.status_code == 504


def test_a_body_over_the_limit_is_refused(client: FlaskClient):
    answer = client.post(ECHO, data=b"x" * (MAX_BODY + 1))

    assert answer.status_code == 413
    assert list(answer.json) == ["error"]


def test_a_model_that_starts_is_unavailable(client: FlaskClient):
    answer = client.post("/v2/models/loading/infer", json=EMPTY)

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_a_model_that_only_streams_refuses_unary_calls(client: FlaskClient):
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}

    assert client.post("/v2/models/streams/infer", json=body).status_code == 501
    assert client.post("/v2/models/words/infer", json=body).json["outputs"][0]["data"] == ["a"]


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ([], "a"),
        ([{"name": "a", "datatype": "INT64", "shape": [1], "data": [1]}], "a"),
        ([{"name": "a", "datatype": "INT32", "shape": [1, 1], "data": [1]}], "a"),
        ([{"name": "a", "datatype": "INT32", "shape": [1], "data": [1]}], "b"),
        ([{"name": name, "datatype": "INT32", "shape": [1], "data": [1]} for name in "abc"], "c"),
        ([{"name": name, "datatype": "INT32", "shape": [1], "data": [1]} for name in "aab"], "a"),
    ],
)
def test_inputs_that_are_not_declared_so_never_reach_the_model(
    client: FlaskClient, worker: GeneratorWorker, inputs: list[dict], name: str
):
    answer = client.post("/v2/models/add/infer", json={"inputs": inputs})

    assert answer.status_code == 400
    assert f"tensor '{name}'" in answer.json["error"]
    assert worker.jobs == []


def test_an_unknown_output_is_refused(client: FlaskClient):
    answer = client.post(ECHO, json=EMPTY | {"outputs": [{"name": "nothing"}]})

    assert answer.status_code == 400
    assert "'nothing'" in answer.json["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Request-Timeout-Ms": "-1"},
        {"X-Request-Timeout-Ms": "1.5"},
        {"X-Request-Timeout-Ms": "9" * 400},
        {"X-Priority": "10"},
        {"X-Priority": "high"},
    ],
)
def test_a_header_with_a_wrong_value_is_refused(client: FlaskClient, headers: dict[str, str]):
    answer = client.post(ECHO, json=EMPTY, headers=headers)

    assert answer.status_code == 400
    assert next(iter(headers)) in answer.json["error"]


def test_a_bug_is_an_error_without_details(worker: GeneratorWorker):
    app = make_app(worker)
    worker.submit = None  # type: ignore[method-assign]
    app.config["PROPAGATE_EXCEPTIONS"] = False

    answer = app.test_client().post(ECHO, json=EMPTY)

    assert answer.status_code == 500
    assert "NoneType" not in answer.json["error"]


def test_a_time_limit_counts_from_the_arrival_of_the_request(worker: GeneratorWorker) -> None:
    app = make_app(worker)
    arrived = time.monotonic() - 100

    @app.before_request
    def note_arrival() -> None:
        g.corosrv_began = arrived

    app.test_client().post(ECHO, json=EMPTY, headers={"X-Request-Timeout-Ms": "5000"})

    assert [job.terms.deadline for job in worker.jobs] == [arrived + 5]
