"""The `grammar` of a request over HTTP: followed in both endpoints, streamed or not, and refused where it cannot be."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.server import Server
from tests.serve.wire import Connection, chat, events, text_of
from tests.support.grammars import JSON_OBJECT

COMPLETIONS = "/v1/completions"
PLATE = 'root ::= [A-Z]{2} "-" [0-9]{3}'


def is_plate(choice: Any, text: str) -> bool:
    return bool(re.fullmatch("[A-Z]{2}-[0-9]{3}", text)) and choice["finish_reason"] == "stop"


def test_a_chat_follows_its_grammar(connection: Connection) -> None:
    answer = connection.post(chat(grammar=PLATE, n=2)).json

    assert all(is_plate(choice, choice["message"]["content"]) for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * 7, "six characters and the end, each a token of this model"


def test_a_completion_follows_its_grammar(connection: Connection) -> None:
    (choice,) = connection.post({"prompt": "x", "grammar": PLATE}, COMPLETIONS).json["choices"]

    assert is_plate(choice, choice["text"])


def test_a_stream_follows_its_grammar(connection: Connection) -> None:
    chunks = events(connection.post(chat(grammar=PLATE, stream=True)).body)

    assert re.fullmatch("[A-Z]{2}-[0-9]{3}", text_of(chunks))


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("grammar", [None, ""])
def test_no_grammar_may_be_said_in_words(connection: Connection, grammar: str | None, is_stream: bool) -> None:
    assert connection.post(chat(max_tokens=1, grammar=grammar, stream=is_stream)).status == 200


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("nonsense", "line 1, column 9: expected '::='"),
        ('root ::= "a"\nitem ::= (', "line 2, column 10: this '(' is never closed"),
        ('item ::= "a"', "no rule 'root'"),
        ("root ::= item", "line 1, column 10: the rule 'item' is not defined"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= "a"{3,1}', "most is below its least"),
        ('root ::= "a"{2001}', "at most 2000 repetitions"),
        ('root ::= (("a"{2000}){2000}){2000}', "more than 65536 elements"),
        ("root ::= " + "(" * 60_000, "nested deeper than 128"),
        ("root ::= \"" + "a" * 65_536 + "\"", "at most 65536 are taken"),
        ("\n".join(f'r{i} ::= "a"' for i in range(2001)), "more than 2000 rules"),
        ("root ::= <think>", "references to tokens"),
        ("root ::= \"\x00\"", "line 1, column 11: a NUL byte"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)  # fmt: skip
def test_a_grammar_that_cannot_be_used_is_refused_before_anything_is_sent(
    connection: Connection, grammar: str, words: str, is_stream: bool
) -> None:
    answer = connection.post(chat(grammar=grammar, stream=is_stream))

    assert answer.status == 400
    assert words in answer.error["message"]
    members = {name: answer.error[name] for name in ("type", "param", "code")}
    assert members == {"type": "invalid_request_error", "param": "grammar", "code": "invalid_grammar"}


def test_a_grammar_that_is_no_string_is_refused(connection: Connection) -> None:
    answer = connection.post(chat(grammar=["root"]))

    assert (answer.status, answer.error["param"]) == (400, "grammar")


def test_a_dead_end_in_mid_answer_is_one_error_event(connection: Connection) -> None:
    """The synthetic model's tokens are bytes: without one of them the word cannot be finished."""
    answer = connection.post(
        chat(grammar='root ::= "ab"', stream=True, logit_bias={str(ord("b")): False}, temperature=0)
    )

    *_, last = [line for line in answer.body.split(b"\n") if line]
    assert answer.status == 200
    assert b"[DONE]" not in answer.body
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "grammar_dead_end"


LATE: dict[str, Any] = {
    "grammar": 'root ::= " " [A-Z]{2} "-" [0-9]{3}',
    "grammar_lazy": True,
    "grammar_triggers": [{"type": 1, "value": " "}],
}


@pytest.mark.parametrize(
    ("path", "body", "find"),
    [
        ("/completion", {"prompt": "x"}, lambda answer: answer["content"]),
        (COMPLETIONS, {"prompt": "x"}, lambda answer: answer["choices"][0]["text"]),
        ("/v1/chat/completions", chat(), lambda answer: answer["choices"][0]["message"]["content"]),
        ("/v1/responses", {"input": "x"}, lambda answer: answer["output"][0]["content"][0]["text"]),
    ],
)
def test_a_lazy_grammar_begins_with_its_trigger(connection: Connection, path: str, body: Any, find: Any) -> None:
    texts = [find(connection.post({**body, **LATE, "seed": seed}, path).json) for seed in range(4)]

    assert all(re.fullmatch("[^ ]* [A-Z]{2}-[0-9]{3}", text) for text in texts), texts
    assert any(not text.startswith(" ") for text in texts), "text before the trigger is free"


@pytest.mark.parametrize("path", ["/completion", COMPLETIONS, "/v1/chat/completions", "/v1/responses"])
def test_a_lazy_grammar_without_a_trigger_is_refused(connection: Connection, path: str) -> None:
    asked = {"/v1/chat/completions": chat(), "/v1/responses": {"input": "x"}}.get(path, {"prompt": "x"})

    answer = connection.post({**asked, "grammar": PLATE, "grammar_lazy": True}, path)

    assert (answer.status, answer.error["param"]) == (400, "grammar_triggers")


@pytest.mark.model
def test_the_real_model_answers_in_json_when_it_has_to(real: Server) -> None:
    def ask(seed: int) -> dict[str, Any]:
        with real.connect(timeout=60) as connection:
            fields = {"grammar": JSON_OBJECT, "seed": seed, "max_tokens": 100, "temperature": 0.7}
            choice: dict[str, Any] = connection.post(chat("Describe a cat as a JSON object.", **fields)).json[
                "choices"
            ][0]
            return choice

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(ask, range(8)))

    ended = [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)
