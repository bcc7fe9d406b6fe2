"""The client of Ollama's API, in a process of its own: the tests' environment has no need of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import KEY, MODEL, Run, of_clients, says_something
from tests.clients.people import PERSON, QUESTION, WEATHER, Person, Weather
from tests.serve.server import Server

pytestmark = pytest.mark.model

Asked = Callable[..., Any]

HEAD = """
import json, os, sys
import ollama

client = ollama.Client(host=os.environ["SERVER"], headers={"Authorization": "Bearer " + os.environ["KEY"]})
model, given = os.environ["MODEL"], json.loads(sys.argv[1])
options = {"temperature": 0, "num_predict": 60, "num_ctx": 2048}
ask = [{"role": "user", "content": given}]
"""


@pytest.fixture
def ollama(server: Server, run: Run) -> Asked:
    """Runs lines of Python with a client at hand; returns the JSON that they print."""

    def ask(lines: str, given: Any = QUESTION) -> Any:
        program = HEAD + textwrap.dedent(lines)
        printed = run(
            of_clients("python"), "-c", program, json.dumps(given), KEY=KEY, MODEL=MODEL,
            SERVER=f"http://127.0.0.1:{server.port}",
        )  # fmt: skip
        return json.loads(printed)

    return ask


def test_a_chat_is_the_same_whole_and_streamed(ollama: Asked) -> None:
    whole, streamed, counts = ollama(
        """
        whole = client.chat(model, ask, options=options, keep_alive="5m")
        pieces = list(client.chat(model + ":latest", ask, options=options, stream=True))
        text = "".join(piece.message.content for piece in pieces)
        print(json.dumps([whole.message.content, text, [pieces[-1].eval_count, pieces[-1].prompt_eval_count]]))
        """
    )

    assert says_something(whole)
    assert streamed == whole
    assert all(counts)


def test_a_text(ollama: Asked) -> None:
    text, raw = ollama(
        """
        text = client.generate(model, given, system="Be brief.", options=options).response
        print(json.dumps([text, client.generate(model, given, raw=True, options=options).response]))
        """
    )

    assert says_something(text)
    assert raw != text


def test_tokens_and_how_likely_they_were(ollama: Asked) -> None:
    text, tokens = ollama(
        """
        answer = client.chat(model, ask, options=options, logprobs=True, top_logprobs=2).model_dump()
        print(json.dumps([answer["message"]["content"], answer["logprobs"]]))
        """
    )

    assert "".join(token["token"] for token in tokens).startswith(text)
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in tokens)


def test_an_answer_by_a_schema(ollama: Asked) -> None:
    answer = ollama(
        """
        ask, schema = [{"role": "user", "content": given[0]}], given[1]
        print(client.chat(model, ask, format=schema, options=options).message.content)
        """,
        [PERSON, Person.model_json_schema()],
    )

    assert Person.model_validate(answer)


def test_a_conversation_with_a_call_goes_on(ollama: Asked) -> None:
    """Chats as Home Assistant does: tools, a stream, keep_alive and a context's size."""
    tool = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER}}
    calls, text = ollama(
        """
        call = {"function": {"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}}
        ask = [
            {"role": "system", "content": "You are a voice assistant."},
            {"role": "user", "content": "Weather in Oslo, in C?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": json.dumps({"sky": "rain"})},
        ]
        first = list(client.chat(model, ask[:2], tools=[given], stream=True, options=options, keep_alive=-1))
        calls = [call.function.model_dump() for piece in first for call in piece.message.tool_calls or ()]
        second = client.chat(model, ask, tools=[given], stream=True, options=options, keep_alive=-1)
        print(json.dumps([calls, "".join(piece.message.content for piece in second)]))
        """,
        tool,
    )

    assert says_something(text)
    for call in calls:  # SmolLM2 may talk instead
        assert Weather.model_validate(call["arguments"])


def test_vectors_have_the_length_1(ollama: Asked) -> None:
    vectors, single = ollama(
        """
        vectors = client.embed(model, ["a", "b"]).embeddings
        print(json.dumps([list(map(list, vectors)), list(client.embeddings(model, "a").embedding)]))
        """
    )

    assert [sum(number**2 for number in vector) for vector in vectors] == pytest.approx([1, 1])
    assert len(vectors[0]) == len(single)
    assert sum(number**2 for number in single) != pytest.approx(1)


def test_vectors_are_cut_and_have_the_length_1_again(ollama: Asked) -> None:
    whole, cut, long = ollama(
        """
        sizes = (None, 64, 100_000)
        print(json.dumps([list(client.embed(model, "a", dimensions=size).embeddings[0]) for size in sizes]))
        """
    )

    assert len(cut) == 64
    assert sum(number**2 for number in cut) == pytest.approx(1)
    assert cut[0] * whole[63] == pytest.approx(cut[63] * whole[0])
    assert long == whole


def test_models_are_listed_shown_and_pulled(ollama: Asked) -> None:
    names, running, abilities, words = ollama(
        """
        names = [one.model for one in client.list().models]
        client.generate(model, "", keep_alive="5m")
        running = [one.model for one in client.ps().models]
        words = [line.status for line in client.pull(model, stream=True)]
        print(json.dumps([names, running, client.show(model).capabilities, words]))
        """
    )

    assert names == running == [f"{MODEL}:latest"]
    assert abilities == ["completion", "tools"]
    assert words[-1] == "success"


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ("client.chat('gpt-9', ask)", 404, "model 'gpt-9' not found"),
        ("client.show('gpt-9')", 404, "model 'gpt-9' not found"),
        ("list(client.chat(model, ask, stream=True, think=True))", 400, f'"{MODEL}" does not support thinking'),
        ("client.delete(model)", 501, f"model '{MODEL}' is the operator's to remove"),
    ],
)
def test_errors_have_their_status_and_words(ollama: Asked, call: str, status: int, words: str) -> None:
    found = ollama(
        f"""
        try:
            {call}
        except ollama.ResponseError as error:
            print(json.dumps([error.status_code, error.error]))
        """
    )

    assert found[0] == status
    assert found[1].startswith(words)
