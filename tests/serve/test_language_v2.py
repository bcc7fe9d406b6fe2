"""Language models through the v2 protocol of a running server, beside its other dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.server import Server
from tests.serve.wire import Answer, request
from tests.support.waiting import eventually

PROMPT = "Once upon a time"


def post(server: Server, path: str, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    with server.connect() as connection:
        return connection.post(body, path, headers)


def name_of(server: Server) -> str:
    """The first name of its one model, once it is loaded."""
    server.wait_until("ok")
    status, answer = server.get("/v2/models")
    assert status == 200
    return str(answer["models"][0])


def events_of(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    return [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line[:1] == "d"]


def check_same_text(server: Server) -> None:
    """Checks that generate, generate_stream, infer and text completions give the same text."""
    path = f"/v2/models/{name_of(server)}"
    chosen = {"seed": 11, "max_tokens": 16, "temperature": 0.8}

    whole = post(server, f"{path}/generate", text_input=PROMPT, parameters=chosen).json
    *pieces, last = events_of(post(server, f"{path}/generate_stream", text_input=PROMPT, parameters=chosen))
    inputs = [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}]
    inferred = post(server, f"{path}/infer", inputs=inputs, parameters=chosen).json["outputs"]
    completion = post(server, "/v1/completions", prompt=PROMPT, **chosen).json

    text = completion["choices"][0]["text"]
    assert text
    assert whole["text_output"] == text
    assert "".join(event["text_output"] for event in (*pieces, last)) == text
    assert {tensor["name"]: tensor["data"] for tensor in inferred}["text_output"] == [text]
    assert [event["done"] for event in (*pieces, last)] == [False] * len(pieces) + [True]
    for answer in (whole, last):
        assert answer["finish_reason"] == completion["choices"][0]["finish_reason"] == "length"
        assert answer["num_input_tokens"] == completion["usage"]["prompt_tokens"]
        assert answer["num_output_tokens"] == completion["usage"]["completion_tokens"] == 16


def test_every_way_to_ask_gives_the_same_text(server: Server) -> None:
    check_same_text(server)


@pytest.mark.model
def test_every_way_to_ask_a_real_model_gives_the_same_text(real: Server) -> None:
    check_same_text(real)


def test_a_model_is_described_and_said_to_be_ready(server: Server) -> None:
    name = name_of(server)

    assert server.get(f"/v2/models/{name}/ready") == (200, {"name": name, "ready": True})
    status, described = server.get(f"/v2/models/{name}")
    assert status == 200
    assert described["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]
    assert [output["name"] for output in described["outputs"]] == [
        "text_output",
        "finish_reason",
        "num_input_tokens",
        "num_output_tokens",
    ]


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"max_tokens": 0}, "max_tokens"), ({"top_p": 2}, "top_p"), ({"best_of": 2}, "best_of"), ({"stop": [""]}, "stop")],
)
@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_a_wrong_parameter_is_refused_by_name(server: Server, route: str, parameters: Any, word: str) -> None:
    path = f"/v2/models/{name_of(server)}/{route}"

    answer = post(server, path, text_input=PROMPT, parameters=parameters)

    assert answer.status == 400
    assert word in answer.json["error"]


def test_a_call_whose_time_is_over_answers_504(server: Server) -> None:
    path = f"/v2/models/{name_of(server)}/generate"

    answer = post(server, path, {"X-Request-Timeout-Ms": "200"}, text_input=PROMPT, parameters={"max_tokens": 4000})

    assert answer.status == 504
    server.wait_idle()


def test_a_client_that_leaves_ends_its_stream(server: Server) -> None:
    path = f"/v2/models/{name_of(server)}/generate_stream"
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 4000}}
    with server.connect() as connection:
        connection.send(request("POST", path, body))
        assert connection.head().status == 200
        connection.leave()

    eventually(lambda: server.metric("running") == 0, 10, "its job has ended, of the 80 s that it would take")
    server.wait_idle()
