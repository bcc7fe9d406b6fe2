"""Answers whose requests leave open how they are drawn: what the operator or the model file says holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import SERVE, Server, servers
from tests.serve.wire import Connection
from tests.support.gguf import write_llama

IN_FILE = {
    "general.sampling.temp": 0.25,
    "general.sampling.top_k": 1,
    "general.sampling.top_p": 0.5,
    "general.sampling.penalty_repeat": 1.5,
    "general.sampling.penalty_last_n": 32,
    "general.sampling.min_p": 7.5,  # out of range
    "general.sampling.mirostat": 2,  # not offered
    "general.sampling.sequence": "top_k;\n" + "é" * 100,  # neither
}
PROMPT = "Once upon a time"


@pytest.fixture(scope="module", params=["inproc", "process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("drawing")
    model = write_llama(folder / "tiny.gguf", **{"tokenizer.ggml.add_bos_token": False}, **IN_FILE)
    options = "temp=0.75&top_k=-1&n_predict=5&repeat_penalty=1&seed=3"
    models = f"plain={model},own={model}?{options},late={model}?n_predict=7"
    with servers(folder, cache) as started:
        yield started.start(*SERVE, engine=request.param, model=models, ctx=256, slots=2, top_p=0.75)


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect(timeout=60) as connection:
        yield connection


def drawn(server: Server, model: str) -> dict[str, Any]:
    status, answer = server.get(f"/props?model={model}&autoload=true")
    assert status == 200
    return dict(answer["default_generation_settings"]["params"])


def test_a_call_of_v2_that_loads_its_model_gets_the_model_s_own(connection: Connection) -> None:
    answer = connection.post({"text_input": PROMPT, "parameters": {"ignore_eos": True}}, "/v2/models/late/generate")
    greedy = {
        "model": "plain",
        "temperature": 0,
        "max_tokens": 7,
        "repeat_penalty": 1.5,
        "repeat_last_n": 32,
        "ignore_eos": True,
    }

    assert answer.status == 200, answer.body
    assert answer.json["num_output_tokens"] == 7
    completion = connection.post({"prompt": PROMPT, **greedy}, "/v1/completions").json
    assert answer.json["text_output"] == completion["choices"][0]["text"]


def test_a_model_has_what_its_file_says_where_the_operator_says_nothing(server: Server) -> None:
    chosen = {"temperature": 0.25, "top_k": 1, "top_p": 0.75, "repeat_penalty": 1.5, "repeat_last_n": 32}

    assert drawn(server, "plain").items() >= {**chosen, "min_p": 0.05, "mirostat": 0, "n_predict": -1}.items()


def test_what_stands_behind_a_path_goes_over_all_else(server: Server) -> None:
    chosen = {"temperature": 0.75, "top_k": 0, "top_p": 0.75, "repeat_penalty": 1, "n_predict": 5, "seed": 3}

    assert drawn(server, "own").items() >= chosen.items()


def test_values_of_a_file_that_cannot_be_used_are_told_in_the_log(server: Server) -> None:
    assert "'7.500000' of its file's general.sampling.min_p is ignored: COROSRV_MIN_P must be from 0 to 1" in server.log
    assert "'2' of its file's general.sampling.mirostat is ignored: there is no such setting" in server.log


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/responses", {"input": PROMPT}),
        ("/completion", {"prompt": PROMPT}),
        ("/api/generate", {"prompt": PROMPT, "stream": False}),
    ],
)
def test_a_request_goes_over_its_model_and_each_model_has_its_own(
    connection: Connection, path: str, asked: dict[str, Any]
) -> None:
    def n_tokens(**chosen: Any) -> int:
        answer = connection.post({**asked, "ignore_eos": True, **chosen}, path)
        assert answer.status == 200, answer.body
        found = answer.json.get("usage", answer.json)
        names = ("completion_tokens", "output_tokens", "tokens_predicted", "eval_count")
        return next(int(found[name]) for name in names if name in found)

    assert n_tokens(model="own") == 5
    assert n_tokens(model="late") == 7
    if path.startswith("/v1/"):
        name = "max_output_tokens" if "responses" in path else "max_tokens"
        assert n_tokens(model="own", **{name: 3}) == 3
