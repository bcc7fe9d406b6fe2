"""LoRA adapters that are asked for by their names, as models are, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import Stub, infer_request, talk
from tests.serve.server import Server, servers
from tests.serve.test_forwarded_small_models import RANK
from tests.serve.test_grpc import grpc_port
from tests.serve.wire import CHAT, Connection, chat
from tests.support.gguf import write_bert, write_llama, write_lora

MESSAGES = [{"role": "user", "content": "tell me"}]
GREEDY = {"temperature": 0, "max_tokens": 12}
WEIGHTS = {f"blk.{layer}.attn_output.weight": (32, 32) for layer in (0, 1)} | {"blk.1.ffn_up.weight": (32, 64)}
# Every endpoint of a model, a body for it, and where its answer has what the adapter changes.
ASKED: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    CHAT: ({"messages": MESSAGES, **GREEDY}, ("choices", 0, "message", "content")),
    "/v1/completions": ({"prompt": "tell me", **GREEDY}, ("choices", 0, "text")),
    "/v1/responses": (
        {"input": "tell me", "temperature": 0, "max_output_tokens": 12},
        ("output", 0, "content", 0, "text"),
    ),
    "/v1/messages": ({"messages": MESSAGES, **GREEDY}, ("content", 0, "text")),
    "/completion": ({"prompt": "tell me", "temperature": 0, "n_predict": 12}, ("content",)),
    "/v1/embeddings": ({"input": "tell me"}, ("data", 0, "embedding")),
    "/v2/models/{model}/generate": (
        {"text_input": "tell me", "parameters": {"temperature": 0, "max_tokens": 12}},
        ("text_output",),
    ),
    "/v2/models/{model}/infer": (
        {
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["tell me"]}],
            "parameters": {"temperature": 0, "max_tokens": 12},
        },
        ("outputs", 0, "data", 0),
    ),
    "/api/generate": (
        {"prompt": "tell me", "stream": False, "options": {"temperature": 0, "num_predict": 12}},
        ("response",),
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cache: Any) -> Iterator[Server]:
    """A tiny model that knows bytes, with two adapters of which requests get nothing that do not ask."""
    folder = tmp_path_factory.mktemp("adapters")
    model = write_llama(folder / "tiny.gguf", context=512)
    one, two = (write_lora(folder / f"{name}.gguf", WEIGHTS, seed) for seed, name in enumerate(("one", "two")))
    with servers(folder, cache) as started:
        yield started.start(
            model=model, strict_model=1, lora=f"{one}:0,{two}:0", chat_template="chatml", slots=2, ctx=512, grpc_port=0
        )


@pytest.fixture
def connection(served: Server) -> Iterator[Connection]:
    with served.connect(timeout=60) as connection:
        yield connection


def ask(connection: Connection, path: str, model: str, **more: Any) -> Any:
    body, place = ASKED[path]
    named = {} if "{model}" in path else {"model": model}  # v2 takes members that it does not know for inputs
    answer = connection.post({**named, **body, **more}, path.format(model=model))
    assert answer.status == 200, answer.body
    found = answer.json
    for step in place:
        found = found[step]
    return found


@pytest.mark.parametrize("path", ASKED)
def test_an_adapter_answers_to_its_name(connection: Connection, path: str) -> None:
    plain, one, two = (ask(connection, path, name) for name in ("tiny", "one", "two"))

    assert plain != one != two != plain
    assert (ask(connection, path, "one"), ask(connection, path, "tiny")) == (one, plain)


def test_it_is_what_a_request_gets_that_names_the_scales(connection: Connection) -> None:
    named = ask(connection, CHAT, "two")

    assert named == ask(connection, CHAT, "tiny", lora=[{"id": 1, "scale": 1.0}])


def test_an_adapter_by_name_and_scales_contradict_each_other(connection: Connection) -> None:
    answer = connection.post(chat(model="one", lora=[{"id": 1, "scale": 1.0}], **GREEDY), CHAT)

    assert (answer.status, answer.error["param"]) == (400, "lora")
    assert "'tiny'" in answer.error["message"]


def test_adapters_are_listed_with_the_model_that_they_are_of(connection: Connection) -> None:
    listed = connection.ask("GET", "/v1/models").json["data"]
    found = connection.ask("GET", "/v1/models/two").json

    assert [(each["id"], each.get("parent")) for each in listed] == [("tiny", None), ("one", "tiny"), ("two", "tiny")]
    assert (found["id"], found["parent"]) == ("two", "tiny")
    assert connection.post(chat(model="one", max_tokens=1), CHAT).json["model"] == "one"
    assert connection.post(chat(model="three"), CHAT).error["code"] == "model_not_found"


def test_an_adapter_answers_to_its_name_over_grpc(served: Server, connection: Connection) -> None:
    text = Tensor("text_input", "BYTES", [1], data=[b"tell me"])
    for name in ("tiny", "one", "two"):
        sent = infer_request(name, text, parameters={"temperature": 0, "max_tokens": 12})
        answer = talk(grpc_port(served), lambda stub, sent=sent: stub.infer(sent))

        output = answer.raw_output_contents[0][4:].decode()  # behind its length
        assert (answer.model_name, output) == (name, ask(connection, "/v2/models/{model}/generate", name))


def test_an_adapter_answers_to_its_name_in_streams_of_the_v2_protocol(served: Server, connection: Connection) -> None:
    text = Tensor("text_input", "BYTES", [1], data=[b"tell me"])
    body = {"text_input": "tell me", "parameters": GREEDY}

    async def stream(stub: Stub) -> list[tuple[str, str]]:
        """Asks for all three on one stream."""
        call = stub.stream()
        pieces = []
        for name in ("tiny", "one", "two"):
            await call.write(infer_request(name, text, id=name, parameters=GREEDY))
        await call.done_writing()
        while message := await call.read():
            answer = message.infer_response
            pieces.append((answer.model_name, answer.raw_output_contents[0][4:].decode()))
        return pieces

    over_grpc = talk(grpc_port(served), stream)
    for name in ("tiny", "one", "two"):
        plain = ask(connection, "/v2/models/{model}/generate", name)
        streamed = connection.post(body, f"/v2/models/{name}/generate_stream")
        events = [json.loads(line[6:]) for line in streamed.body.decode().splitlines() if line.startswith("data: ")]
        assert "".join(event["text_output"] for event in events) == plain
        assert {event["model_name"] for event in events} == {name}
        assert "".join(piece for model, piece in over_grpc if model == name) == plain


def test_an_adapter_of_a_model_that_ranks_answers_to_its_name(tmp_path: Path, cache: Any) -> None:
    model = write_bert(tmp_path / "rank.gguf", pooling=RANK, has_head=True)
    lora = write_lora(tmp_path / "one.gguf", {"blk.1.attn_output.weight": (32, 32)}, architecture="bert")
    with servers(tmp_path, cache) as started:
        server = started.start(model=model, strict_model=1, lora=f"{lora}:0", ctx=256)
        with server.connect(timeout=60) as connection:
            sent = {"query": "a cat", "documents": ["the cat sat on the mat", "why"]}
            plain, one = (connection.post({"model": name, **sent}, "/v1/rerank").json for name in ("rank", "one"))

    assert (plain["model"], one["model"]) == ("rank", "one")
    scores = [{each["index"]: each["relevance_score"] for each in answer["results"]} for answer in (plain, one)]
    assert scores[0] != scores[1]


def test_the_v2_protocol_lists_adapters_as_models(connection: Connection) -> None:
    listed = connection.ask("POST", "/v2/repository/index", {}).json

    assert {"tiny", "one", "two"} <= {each["name"] for each in listed}
    assert connection.ask("GET", "/v2/models/one").json["name"] == "one"
    assert connection.ask("GET", "/v2/models/one/ready").status == 200
    assert connection.ask("GET", "/v2/models/three/ready").status == 404


def test_the_gateways_picker_is_told_of_adapters_in_memory(served: Server) -> None:
    text = served.get("/metrics")[1]

    assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="one,two",waiting_lora_adapters=""} 1.' in text
