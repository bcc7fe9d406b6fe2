"""Answers that outgrow their context, over HTTP; the numbers of tokens are those of llama-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import SERVE, Server, servers
from tests.serve.wire import Connection, events, request
from tests.support.gguf import write_llama

CONTEXT = 256  # tokens, libllama's least of a slot
PROMPT = list(range(40, 55))
GOES_ON = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def shifting(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("shifting")
    model = write_llama(folder / "tiny.gguf", context=CONTEXT, **{"tokenizer.ggml.add_bos_token": False})
    with servers(folder, cache) as started:
        yield started.start(*SERVE, "--context-shift", model=model, ctx=CONTEXT, slots=2)


@pytest.fixture
def connection(shifting: Server) -> Iterator[Connection]:
    with shifting.connect(timeout=60) as connection:
        yield connection


def good(connection: Connection, body: dict[str, Any], path: str) -> Any:
    answer = connection.post(body, path)
    assert answer.status == 200, answer.body
    return answer.json


# llama-server --context-shift -c 256, of a prompt of 15 tokens that n_keep counts without a BOS.
@pytest.mark.parametrize(
    ("chosen", "n_cached"),
    [
        ({"n_keep": 0}, 187),
        ({"n_keep": 5}, 189),
        ({"n_keep": 5, "n_discard": 20}, 254),
        ({"n_keep": -1, "n_discard": 7}, 251),
    ],
)
def test_tokens_cached_are_those_that_shifts_have_left(
    connection: Connection, chosen: dict[str, int], n_cached: int
) -> None:
    answer = good(connection, {**GOES_ON, "n_predict": 300, **chosen}, "/completion")

    assert (answer["tokens_cached"], answer["tokens_evaluated"], answer["tokens_predicted"]) == (n_cached, 15, 300)
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
    assert answer["generation_settings"].items() >= chosen.items()


def test_an_answer_that_fits_is_not_truncated(connection: Connection) -> None:
    answer = good(connection, {**GOES_ON, "n_predict": 20}, "/completion")

    assert (answer["tokens_cached"], answer["truncated"]) == (34, False)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openai_s_answers_go_on_up_to_their_limit(connection: Connection, path: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {}

    answer = good(connection, {**GOES_ON, **chat, "max_tokens": 2 * CONTEXT, "n_keep": 4, "n_discard": 50}, path)

    assert answer["usage"]["completion_tokens"] == 2 * CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("chosen", [{"n_keep": -2}, {"n_discard": -1}, {"n_predict": -2}])
def test_what_llama_server_refuses_is_refused_by_its_name(connection: Connection, chosen: dict[str, int]) -> None:
    answer = connection.post({**GOES_ON, "stream": True, **chosen}, "/completion")

    assert answer.status == 400
    assert next(iter(chosen)) in answer.json["error"]["message"]


def test_a_stream_without_a_limit_goes_on_and_a_whole_answer_ends_with_its_context(
    shifting: Server, connection: Connection
) -> None:
    whole = good(connection, GOES_ON, "/completion")
    with shifting.connect(timeout=60) as stream:
        stream.send(request("POST", "/completion", {**GOES_ON, "stream": True}))
        counts = (event["tokens_predicted"] for piece in stream.body(stream.head()) for event in events(piece))
        n_streamed = next((count for count in counts if count > CONTEXT), 0)

    assert (whole["tokens_predicted"], whole["truncated"]) == (CONTEXT - len(PROMPT), True)
    assert n_streamed > CONTEXT
