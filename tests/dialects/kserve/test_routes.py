"""The endpoints over functions, one by one."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

import corosrv
from corosrv.base.errors import Unavailable
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.formats.tensors import TensorSpec
from tests.dialects.kserve.app import make_app
from tests.dialects.kserve.generator_worker import GeneratorWorker, Model
from tests.dialects.kserve.models import echo

SUM = {
    "inputs": [
        {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]},
        {"name": "b", "datatype": "INT32", "shape": [2], "data": [10, 20]},
    ]
}


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_the_server_describes_itself(client: FlaskClient, path: str):
    answer = client.get(path)

    assert answer.json == {
        "name": "corosrv",
        "version": corosrv.__version__,
        "extensions": ["binary_tensor_data", "generate", "model_repository(index)", "capability"],
    }
    assert answer.headers["Content-Type"] == "application/json"


def test_health_is_a_json_object(client: FlaskClient):
    assert client.get("/v2/health/live").json == {"live": True}
    assert client.get("/v2/health/ready").json == {"ready": True, "live": True}


def test_a_server_that_takes_no_calls_says_why(worker: GeneratorWorker):
    def check_ready() -> None:
        raise Unavailable("the pool 'default' starts")

    answer = make_app(worker, check_ready).test_client().get("/v2/health/ready")

    assert answer.status_code == 503
    assert answer.json == {"ready": False, "error": "the pool 'default' starts"}
    assert answer.headers["Retry-After"] == "1"


def test_models_are_listed_once_and_sorted_without_capabilities(client: FlaskClient):
    assert client.get("/v2/models").json == {"models": ["add", "echo", "loading", "sleep", "streams", "words"]}


def test_a_model_describes_its_versions_and_tensors(client: FlaskClient):
    numbers = [{"name": name, "datatype": "INT32", "shape": [-1]} for name in "ab"]

    assert client.get("/v2/models/add/versions/2").json == {
        "name": "add",
        "versions": ["2"],
        "platform": "corosrv-python",
        "inputs": numbers,
        "outputs": [],
    }
    assert [spec["name"] for spec in client.get("/v2/models/add").json["outputs"]] == ["sum", "difference"]
    assert client.get("/v2/models/echo").json["versions"] == []


def test_optional_inputs_are_described_as_all_others(client: FlaskClient, worker: GeneratorWorker):
    card = HandlerCard("may", inputs=[TensorSpec("a", "FP32", [2, -1]), TensorSpec("b", "BYTES", [], optional=True)])
    worker.models = {**worker.models, card.key: Model(card, echo)}

    assert client.get("/v2/models/may").json["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [2, -1]},
        {"name": "b", "datatype": "BYTES", "shape": []},
    ]


def test_a_model_says_whether_it_is_ready(client: FlaskClient):
    assert client.get("/v2/models/add/ready").json == {"name": "add", "ready": True}
    assert client.get("/v2/models/add/versions/2/ready").json == {"name": "add", "ready": True}

    answer = client.get("/v2/models/loading/ready")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json == {"name": "loading", "ready": False, "error": "the model 'loading' is not ready: it starts"}


@pytest.mark.parametrize("path", ["", "/ready", "/versions/3", "/versions/3/ready"])
def test_an_unknown_model_or_version_is_not_found(client: FlaskClient, path: str):
    name = "add" if "versions" in path else "none"

    answer = client.get(f"/v2/models/{name}{path}")

    assert (answer.status_code, answer.json) == (404, {"error": f"there is no model '{name}'"})


def test_the_index_has_a_row_for_each_version(client: FlaskClient):
    rows = client.post("/v2/repository/index").json

    assert [(row["name"], row["version"]) for row in rows][:3] == [("add", "1"), ("add", "2"), ("echo", "1")]
    assert {"name": "loading", "version": "1", "state": "LOADING", "reason": "it starts"} in rows
    assert len(rows) == 7


@pytest.mark.parametrize(("body", "has_loading"), [({}, True), ({"ready": False}, True), ({"ready": True}, False)])
def test_the_index_can_be_of_ready_models_only(client: FlaskClient, body: dict, has_loading: bool):
    rows = client.post("/v2/repository/index", json=body).json

    assert ("loading" in {row["name"] for row in rows}) is has_loading


def test_a_call_is_answered_with_all_outputs_in_the_models_order(client: FlaskClient):
    answer = client.post("/v2/models/add/infer", json=SUM)

    assert answer.json == {
        "model_name": "add",
        "outputs": [
            {"name": "sum", "datatype": "INT32", "shape": [2], "data": [11, 22]},
            {"name": "difference", "datatype": "INT32", "shape": [2], "data": [-9, -18]},
        ],
    }
    assert answer.headers["Content-Type"] == "application/json"


def test_a_call_of_a_version_says_which_ran(client: FlaskClient):
    assert client.post("/v2/models/add/versions/2/infer", json=SUM).json["model_version"] == "2"


@pytest.mark.parametrize("call_id", ["42", "", "ü"])
def test_an_id_is_returned_exactly(client: FlaskClient, call_id: str):
    assert client.post("/v2/models/add/infer", json=SUM | {"id": call_id}).json["id"] == call_id


def test_an_empty_list_of_outputs_asks_for_all(client: FlaskClient):
    outputs = client.post("/v2/models/add/infer", json=SUM | {"outputs": []}).json["outputs"]

    assert [output["name"] for output in outputs] == ["sum", "difference"]


def test_outputs_come_in_the_order_that_was_asked_for(client: FlaskClient):
    asked = SUM | {"outputs": [{"name": "difference"}, {"name": "sum"}]}

    outputs = client.post("/v2/models/add/infer", json=asked).json["outputs"]

    assert [output["name"] for output in outputs] == ["difference", "sum"]


def test_parameters_keep_their_types(client: FlaskClient):
    parameters = {"yes": True, "one": 1, "float": 1.0, "text": "1", "most": 2**64 - 1, "sequence_id": 7}

    answer = client.post("/v2/models/echo/infer", json={"inputs": [], "parameters": parameters})

    assert {name: (type(value), value) for name, value in answer.json["parameters"].items()} == {
        name: (type(value), value) for name, value in parameters.items()
    }


def test_parameters_for_the_front_do_not_reach_the_handler(client: FlaskClient, worker: GeneratorWorker):
    parameters = {"timeout": 5_000_000, "priority": 2, "binary_data_output": False, "triton_x": 1, "mine": 2}

    client.post("/v2/models/echo/infer", json={"inputs": [], "parameters": parameters})

    (job,) = worker.jobs
    assert job.request.parameters == {"mine": 2}
    assert job.terms.priority == 2


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("get", "/v2/models/add/infer", "POST"),
        ("post", "/v2/models/add", "GET"),
        ("delete", "/v2", "GET"),
        ("get", "/v2/repository/index", "POST"),
        ("put", "/v2/health/ready", "GET"),
    ],
)
def test_a_wrong_verb_is_told_the_right_one(client: FlaskClient, method: str, path: str, allow: str):
    answer = getattr(client, method)(path)

    assert answer.status_code == 405
    assert allow in answer.headers["Allow"]
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/v2/models/add/nothing", "/v2/models//infer", "/v2/models/a%2Fb/infer"]
)
def test_an_unknown_path_is_answered_in_json(client: FlaskClient, path: str):
    answer = client.get(path)

    assert answer.status_code == 404
    assert list(answer.json) == ["error"]
    assert answer.headers["Content-Type"] == "application/json"


ABSENT = [
    ("get", "/v2/systemsharedmemory/status"),
    ("post", "/v2/systemsharedmemory/region/r/register"),
    ("get", "/v2/cudasharedmemory/status"),
    ("post", "/v2/cudasharedmemory/unregister"),
    ("get", "/v2/trace/setting"),
    ("post", "/v2/models/add/trace/setting"),
    ("post", "/v2/logging"),
    ("get", "/v2/models/stats"),
    ("get", "/v2/models/add/versions/2/stats"),
    ("get", "/v2/models/add/config"),
    ("post", "/v2/repository/models/add/load"),
    ("post", "/v2/repository/models/add/unload"),
]


@pytest.mark.parametrize(("method", "path"), ABSENT, ids=[path for _, path in ABSENT])
def test_what_is_not_offered_is_not_there(client: FlaskClient, method: str, path: str):
    answer = getattr(client, method)(path, json={} if method == "post" else None)

    assert (answer.status_code, list(answer.json)) == (404, ["error"])
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("name", ["ADD", "Add", "add%20", ".add", "a" * 129])
def test_a_name_is_taken_to_the_letter(client: FlaskClient, name: str):
    assert client.get(f"/v2/models/{name}").status_code == 404
    assert client.post(f"/v2/models/{name}/infer", json=SUM).status_code == 404


def test_a_path_is_decoded_once(client: FlaskClient):
    assert client.get("/v2/models/%61dd").json["name"] == "add"
    assert client.get("/v2/models/%2561dd").status_code == 404
