"""Chunks to Ollama's answers: lines, counts and times, thoughts, calls, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.prepare import SyntaxParser, TextParser
from corosrv.dialects.ollama import answers
from corosrv.dialects.ollama.answers import OllamaChatAnswer, OllamaTextAnswer, Stopwatch
from corosrv.formats.callformats.description import HERMES
from tests.support.answers import complete_json

THOUGHTS = Syntax(thought_tags=("<think>", "</think>"))
CALLS = Syntax(tool_format=HERMES, markers=("<tool_call>",))
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'


def chunks(*texts: str, finish: Finish = Finish.STOP) -> list[Chunk]:
    pieces = [Chunk(0, text, 1) for text in texts]
    return [*pieces, Chunk(0, "", 1, finish, prompt_tokens=5, cached_tokens=2, prompt_ms=10.0, decode_ms=40.0)]


def chat(syntax: Syntax | None = None) -> OllamaChatAnswer:
    return OllamaChatAnswer("tiny", TextParser() if syntax is None else SyntaxParser(syntax), Stopwatch(load_s=0.5))


def lines(answer: answers.OllamaAnswer, *texts: str) -> list[Any]:
    sent = answer.first() + b"".join(answer.events([chunk]) for chunk in chunks(*texts))
    assert sent.endswith(b"\n")
    return [json.loads(line) for line in sent.splitlines()]


def test_each_piece_is_a_line_and_the_last_has_counts_and_times():
    *pieces, last = lines(chat(), "Hel", "lo")

    assert [(line["message"], line["done"]) for line in pieces] == [
        ({"role": "assistant", "content": "Hel"}, False),
        ({"role": "assistant", "content": "lo"}, False),
    ]
    assert (last["model"], last["message"]["content"], last["done"], last["done_reason"]) == ("tiny", "", True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (5, 3)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (10_000_000, 40_000_000)
    assert last["load_duration"] == 500_000_000
    assert last["total_duration"] > 0
    assert last["created_at"].endswith("Z")


def test_what_tells_no_time_is_no_line_of_its_own():
    """Clients decode each line, and an empty one is no JSON."""
    assert json.loads(answers.NOTHING + answers.NOTHING + answers.encode_line({"a": 1})) == {"a": 1}
    assert b"\n" not in answers.NOTHING


def test_an_answer_that_is_not_streamed_has_all():
    answer = complete_json(chat(), chunks("Hel", "lo", finish=Finish.LENGTH))

    assert answer["message"] == {"role": "assistant", "content": "Hello"}
    assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "length", 3)


def test_thoughts_are_told_apart():
    *pieces, _ = lines(chat(THOUGHTS), "<think>", "Hm.", "</think>", "Yes.")

    assert "".join(line["message"].get("thinking", "") for line in pieces) == "Hm."
    assert "".join(line["message"]["content"] for line in pieces) == "Yes."


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_call_comes_whole_with_its_arguments_as_an_object(is_streamed: bool):
    if is_streamed:
        calls = [call for line in lines(chat(CALLS), *CALL, *CALL) for call in line["message"].get("tool_calls", ())]
    else:
        calls = complete_json(chat(CALLS), chunks(CALL, CALL))["message"]["tool_calls"]

    assert [call["function"] for call in calls] == [
        {"name": "look", "arguments": {"at": 1}, "index": 0},
        {"name": "look", "arguments": {"at": 1}, "index": 1},
    ]
    assert len({call["id"] for call in calls}) == 2


def test_a_call_that_was_cut_off_has_no_arguments():
    answer = complete_json(
        chat(CALLS), chunks('<tool_call>\n{"name": "look", "arguments": {"at"', finish=Finish.LENGTH)
    )

    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == {}


def test_a_text_is_a_response():
    answer = OllamaTextAnswer("tiny", SyntaxParser(THOUGHTS), Stopwatch())

    complete = complete_json(answer, chunks("<think>Hm.</think>", "Yes."))
    assert (complete["response"], complete["thinking"]) == ("Yes.", "Hm.")
    assert "message" not in complete


def test_an_error_is_a_line():
    assert json.loads(chat().failure(Refused("a is wrong", "a"))) == {"error": "a is wrong"}


@pytest.mark.parametrize(("is_chat", "member"), [(True, "message"), (False, "response")])
def test_a_model_that_was_loaded_is_told_so(is_chat: bool, member: str):
    answer = json.loads(answers.encode_line(answers.loading_answer("tiny", "load", is_chat=is_chat)))

    assert answer["done_reason"] == "load"
    assert answer["done"] is True
    assert member in answer
