"""The example applications, each served as its own first line says."""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import Server, servers

FOLDER = Path(__file__).parents[2] / "deploy" / "app"


def command(example: str) -> list[str]:
    """The words of `corosrv serve ...` in the example's first line."""
    (words,) = re.findall(r"(corosrv serve .*)$", (FOLDER / f"{example}.py").read_text().partition("\n")[0])
    return [*shlex.split(words), "--port", "0"]


@pytest.fixture(scope="module", params=["basic", "streaming", "multi_stage", "typed"])
def example(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(example: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers(tmp_path_factory.mktemp("apps"), tmp_path_factory.mktemp("cache")) as started:
        yield started.start(*command(example), model="", run_dir=tmp_path_factory.mktemp("run"))


def only(name: str) -> Any:
    """Marks a test for one example; its server is shared with the others of that example."""
    return pytest.mark.parametrize("example", [name], indirect=True, scope="module")


def tensor(name: str, datatype: str, *data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": list(data)}


def infer(server: Server, model: str, *inputs: dict[str, Any]) -> Any:
    with server.connect() as connection:
        return connection.post({"inputs": list(inputs)}, f"/v2/models/{model}/infer").json


def outputs(answer: Any) -> dict[str, Any]:
    return {output["name"]: output["data"] for output in answer["outputs"]}


@only("basic")
def test_numbers_are_added(server: Server) -> None:
    answer = infer(server, "add", tensor("a", "INT32", 1, 2, 3), tensor("b", "INT32", 10, 20, 30))

    assert outputs(answer) == {"sum": [11, 22, 33]}


@only("basic")
def test_what_a_handler_refuses_is_told_in_its_words(server: Server) -> None:
    answer = infer(server, "add", tensor("a", "INT32", 1), tensor("b", "INT32", 1, 2))

    assert answer == {"error": "a has 1 elements and b has 2"}


@only("basic")
def test_the_latest_version_answers_where_none_is_named(server: Server) -> None:
    point = tensor("point", "FP64", 3.0, 4.0)

    assert outputs(infer(server, "norm", point)) == {"length": [5.0]}
    assert outputs(infer(server, "norm/versions/1", point)) == {"length": [7.0]}


@only("basic")
def test_a_worker_keeps_what_it_has(server: Server) -> None:
    first, second = (outputs(infer(server, "counter"))["n_calls"][0] for _ in range(2))

    assert second == first + 1


@only("basic")
def test_the_api_document_shows_each_model_with_a_request_to_try(server: Server) -> None:
    status, document = server.get("/openapi.json")

    assert status == 200
    content = document["paths"]["/v2/models/add/infer"]["post"]["requestBody"]["content"]["application/json"]
    example = content["examples"]["An example"]["value"]
    assert [member["name"] for member in infer(server, "add", *example["inputs"])["outputs"]] == ["sum"]


@only("basic")
def test_a_stored_value_stands_for_an_inputs_data(server: Server) -> None:
    with server.connect() as connection:
        stored = connection.post(struct.pack("<2i", 7, 8), "/v2/objects").json
    a = {"name": "a", "datatype": "INT32", "shape": [2], "parameters": {"object_ref": stored["id"]}}

    answers = [infer(server, "add", a, tensor("b", "INT32", 1, 1)) for _ in range(2)]

    assert [outputs(answer) for answer in answers] == [{"sum": [8, 9]}] * 2


@only("streaming")
def test_a_text_is_spelled_word_by_word(server: Server) -> None:
    with server.connect() as connection:
        answer = connection.post({"text_input": "one word at a time"}, "/v2/models/spell/generate_stream")

    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert [event["text_output"] for event in events if event["text_output"]] == ["one", " word", " at", " a", " time"]
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]


@only("streaming")
def test_pieces_are_joined_for_those_who_want_one_answer(server: Server) -> None:
    with server.connect() as connection:
        answer = connection.post({"text_input": "one word at a time"}, "/v2/models/spell/generate").json

    assert answer["text_output"] == "one word at a time"


@only("multi_stage")
def test_stages_find_each_other_by_what_they_can_do(server: Server) -> None:
    answer = infer(
        server,
        "search",
        tensor("query", "BYTES", "cold"),
        tensor("documents", "BYTES", "ice and snow", "a hot day", "cold rain"),
    )

    assert outputs(answer)["results"][0] == "cold rain"


@only("multi_stage")
def test_a_stage_can_be_asked_for_by_its_capability(server: Server) -> None:
    body = {"capability": {"type": "embed"}, "inputs": [tensor("texts", "BYTES", "abba")]}
    with server.connect() as connection:
        answer = connection.post(body, "/v2/capabilities/infer").json

    (vectors,) = answer["outputs"]
    assert (vectors["shape"], vectors["data"][:3]) == ([1, 26], [2.0, 2.0, 0.0])
    assert json.loads(answer["parameters"]["capability"]) == {"type": "embed", "unit": "letters"}


@only("typed")
def test_the_metadata_shows_what_the_types_say(server: Server) -> None:
    status, metadata = server.get("/v2/models/bill")

    assert status == 200
    assert metadata["inputs"] == [{"name": "orders", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["outputs"] == [
        {"name": "total", "datatype": "FP64", "shape": [1]},
        {"name": "items", "datatype": "BYTES", "shape": [-1]},
    ]


@only("typed")
def test_types_are_inputs_and_outputs_over_http(server: Server) -> None:
    order = tensor("orders", "BYTES", '{"item":"tea","price":2.5,"count":2}')

    assert outputs(infer(server, "bill", order)) == {"total": [5.0], "items": ["tea"]}
    assert outputs(infer(server, "scale", tensor("numbers", "FP64", 1, 2))) == {"output": [2.0, 4.0]}
    product = infer(server, "outer", tensor("a", "FP64", 1, 2), tensor("b", "FP64", 3))["outputs"][0]
    assert (product["shape"], product["data"]) == ([2, 1], [3.0, 6.0])


@only("typed")
def test_what_does_not_fit_a_type_is_told_in_words(server: Server) -> None:
    answer = infer(server, "bill", tensor("orders", "BYTES", '{"item":"tea"}'))

    assert answer == {"error": "the input 'orders' does not fit: Object missing required field `price`"}


@only("typed")
def test_a_typed_text_model_generates(server: Server) -> None:
    with server.connect() as connection:
        answer = connection.post({"text_input": "one word"}, "/v2/models/shout/generate").json

    assert answer["text_output"] == "ONE WORD "
