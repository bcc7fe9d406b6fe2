"""Chunks to answers: the members, the order of events, usage and timings."""

import json
import math
import weakref
from typing import Any

import msgspec
import pytest

from corosrv.contracts.jobs import Candidate, Chunk, Finish, Job, ModelCard, Sampling, Text, TokenInfo
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.prepare import SyntaxParser, TextParser
from corosrv.dialects.generation.call import Answer, AnswerOptions
from corosrv.dialects.openai.answer_types import ChatChunk, TextCompletion
from corosrv.dialects.openai.chat.answers import ChatAnswer
from corosrv.dialects.openai.completions import TextAnswer
from corosrv.dialects.openai.events import DONE
from tests.support.answers import complete_json
from tests.support.call_formats import FORMATS

CARD = ModelCard("tiny", created=1, fingerprint="b123")
TERMINAL = {"prompt_tokens": 5, "cached_tokens": 2, "prompt_ms": 10.0, "decode_ms": 40.0}


CHAT, TEXT = "chat", "text"


def answer(
    shape: str, n: int = 1, prompts: int = 1, stream: bool = False, usage: bool = False, prompt_tokens: int = 5
) -> Answer:
    return answer_to(Job((Text("x"),) * prompts, n=n), shape, stream, usage)


def answer_to(job: Job, shape: str, stream: bool = False, usage: bool = False) -> Answer:
    if shape == TEXT:
        return TextAnswer(job, CARD, AnswerOptions(n=job.n, stream=stream, usage=usage))
    return ChatAnswer(job, CARD, TextParser(), AnswerOptions(stream=stream, usage=usage))


class Words(str):
    """A string that tells when it is dropped."""


@pytest.mark.parametrize("shape", [CHAT, TEXT])
def test_an_answer_does_not_keep_the_prompt(shape):
    prompt = Words("a long one")
    is_kept = weakref.ref(prompt)
    job = Job((Text(prompt),))
    del prompt

    answer = answer_to(job, shape, stream=True)
    del job

    assert is_kept() is None
    assert b"late" in answer.events([text(0, "late")])


def text(index: int, words: str, n_tokens: int = 1) -> Chunk:
    return Chunk(index, words, n_tokens)


def last(index: int, finish: Finish = Finish.STOP, words: str = "", n_tokens: int = 1) -> Chunk:
    return Chunk(index, words, n_tokens, finish, **TERMINAL)


def sent(stream: bytes) -> list[Any]:
    """The events of a stream; comments are left out, and its last line stays as it is."""
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n\n") if line and line != ":"]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def choices(events: list[Any]) -> list[Any]:
    """The only choice of each event that has one."""
    return [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]


def delta(index: int, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def piece(index: int, words: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": words, "logprobs": None, "finish_reason": finish}


# Streams.


def test_a_chat_stream_has_role_text_finish_and_done_in_this_order():
    answering = answer(CHAT, stream=True)

    events = sent(answering.first() + answering.events([text(0, "Hel"), text(0, "lo"), last(0)]))

    assert choices(events) == [
        delta(0, role="assistant", content=None),
        delta(0, content="Hel"),
        delta(0, content="lo"),
        delta(0, "stop"),
    ]
    assert events[-1] == "[DONE]"


def test_a_text_stream_begins_with_a_comment_that_carries_the_headers():
    answering = answer(TEXT, stream=True)

    assert answering.first() == b":\n\n"
    assert choices(sent(answering.events([text(0, "Hi"), last(0, Finish.LENGTH, "!")]))) == [
        piece(0, "Hi"),
        piece(0, "!"),
        piece(0, "", "length"),
    ]


def test_every_event_has_the_same_id_time_model_and_object():
    answering = answer(CHAT, stream=True, usage=True)

    events = sent(answering.first() + answering.events([text(0, "x"), last(0)]))[:-1]

    members = [{name: event[name] for name in ("id", "created", "model", "object")} for event in events]
    assert all(one == members[0] for one in members)
    assert members[0]["id"].startswith("chatcmpl-")
    assert members[0]["object"] == "chat.completion.chunk"


def test_usage_comes_once_and_last_and_is_null_before():
    answering = answer(CHAT, stream=True, usage=True)

    *earlier, usage, done = sent(answering.first() + answering.events([text(0, "x"), last(0)]))

    assert [event["usage"] for event in earlier] == [None] * 3
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 2, "[DONE]")
    assert "timings" in usage


def test_without_usage_only_the_last_finish_has_timings():
    answering = answer(CHAT, stream=True)

    *earlier, finish, _ = sent(answering.first() + answering.events([text(0, "x"), last(0)]))

    assert not any("usage" in event or "timings" in event for event in earlier)
    assert "usage" not in finish
    assert finish["timings"]["predicted_n"] == 2


def test_answers_of_one_stream_interleave_and_end_once():
    answering = answer(CHAT, n=2, stream=True, usage=True)

    events = sent(
        answering.first()
        + answering.events([text(1, "b"), text(0, "a"), last(1)])
        + answering.events([text(0, "A"), last(0, Finish.LENGTH)])
    )

    assert choices(events) == [
        delta(0, role="assistant", content=None),
        delta(1, role="assistant", content=None),
        delta(1, content="b"),
        delta(0, content="a"),
        delta(1, "stop"),
        delta(0, content="A"),
        delta(0, "length"),
    ]
    assert events.count("[DONE]") == 1
    assert [event["usage"]["completion_tokens"] for event in events[:-1] if event["usage"]] == [5]


def test_no_event_has_empty_text():
    assert answer(CHAT, stream=True).events([text(0, "", 3)]) == b""


@pytest.mark.parametrize("words", ['"quoted"\\', "line\nline\r\n", "\0\x1f\x7f", "\u2028é🌊", "</script>", "data: x"])
def test_any_text_survives_the_wire(words):
    stream = answer(CHAT, stream=True).events([text(0, words), last(0)])

    assert choices(sent(stream))[0] == delta(0, content=words)
    assert stream.count(b"\n") == 2 * stream.count(b"data: {") + 2  # no line but the events' own


@pytest.mark.parametrize("shape", [CHAT, TEXT])
def test_the_streamed_text_is_the_whole_text(shape):
    chunks = [text(0, "a "), text(1, "b"), text(0, "c"), last(1, Finish.LENGTH, "d"), last(0)]

    streamed = choices(sent(answer(shape, n=2, stream=True).events(chunks)))
    whole = complete_json(answer(shape, n=2), chunks)["choices"]

    def said(choice: dict[str, Any]) -> str:
        return choice["text"] if shape is TEXT else choice.get("message", choice.get("delta")).get("content", "")

    for index, expected in enumerate(("a c", "bd")):
        assert "".join(said(one) for one in streamed if one["index"] == index) == expected
        assert said(whole[index]) == expected


# Whole answers.


def test_a_whole_chat_has_these_members():
    whole = complete_json(answer(CHAT), [text(0, "Hello"), last(0)])

    assert whole.pop("id").startswith("chatcmpl-")
    assert isinstance(whole.pop("created"), int)
    assert whole.pop("timings")
    assert whole == {
        "object": "chat.completion",
        "model": "tiny",
        "system_fingerprint": "b123",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_a_whole_completion_has_its_own_names():
    whole = complete_json(answer(TEXT), [text(0, "Hello"), last(0, Finish.LENGTH)])

    assert whole["id"].startswith("cmpl-")
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [piece(0, "Hello", "length")]


def test_choices_are_in_order_whatever_ends_first():
    whole = complete_json(answer(TEXT, n=2, prompts=2), [last(i, words=str(i)) for i in (2, 0, 3, 1)])

    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(i, str(i)) for i in range(4)]


def test_prompt_tokens_count_once_however_many_answers_there_are():
    usage = complete_json(answer(TEXT, n=3, prompts=2), [last(i, n_tokens=4) for i in range(6)])["usage"]

    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 24, 34)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4  # two of each prompt's first answer


def test_timings_add_up_and_leave_the_first_token_out_of_the_rate():
    timings = complete_json(answer(CHAT), [text(0, "x", 4), last(0)])["timings"]

    assert timings["prompt_n"] + timings["cache_n"] == 5
    assert timings["predicted_n"] == 5
    assert timings["predicted_per_second"] == pytest.approx(100.0)  # four tokens in 40 ms
    assert timings["prompt_per_token_ms"] == pytest.approx(10 / 3)


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
@pytest.mark.parametrize("n_tokens", [0, 1])
def test_timings_are_finite_when_there_is_next_to_nothing(finish, n_tokens):
    timings = complete_json(answer(CHAT), [Chunk(0, "", n_tokens, finish)])["timings"]

    assert all(math.isfinite(value) for value in timings.values())
    assert timings["predicted_per_second"] == 0


# Thoughts, calls and tokens.

SYNTAX = Syntax(("<think>", "</think>"), tool_format=FORMATS["hermes"])


def thoughtful(stream: bool = False, usage: bool = False, n: int = 1, n_probs: int = -1) -> ChatAnswer:
    job = Job((Text("x"),), n=n, sampling=Sampling(n_probs=n_probs))
    return ChatAnswer(job, CARD, SyntaxParser(SYNTAX), AnswerOptions(stream=stream, usage=usage, logprobs=n_probs >= 0))


RAIN = ["<tool_call>", '{"name": "rain"', ', "arguments": {"at"', ': "Köln"}', "}", "</tool_call>"]


def test_calls_come_in_a_message_without_content():
    (choice,) = complete_json(thoughtful(), [*(text(0, word) for word in RAIN), last(0)])["choices"]

    (call,) = choice["message"].pop("tool_calls")
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "rain", "arguments": '{"at": "Köln"}'}}
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"


def test_calls_are_streamed_in_pieces():
    answering = thoughtful(stream=True)

    events = sent(answering.first() + answering.events([text(0, "Well. "), *(text(0, word) for word in RAIN), last(0)]))

    role, said, begin, *pieces, end = choices(events)
    (call,) = begin["delta"]["tool_calls"]
    assert (role, said) == (delta(0, role="assistant", content=None), delta(0, content="Well."))
    assert call.pop("id").startswith("call_")
    assert call == {"index": 0, "type": "function", "function": {"name": "rain", "arguments": ""}}
    assert pieces == [
        delta(0, tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in ('{"at"', ': "Köln"}')
    ]
    assert end == delta(0, "tool_calls")


def test_thoughts_are_apart_and_counted():
    thought = [text(0, word) for word in ("<think>", "Hm", ".", "</think>", "\n\n", "Yes")]

    whole = complete_json(thoughtful(), [*thought, last(0)])
    streamed = thoughtful(stream=True, usage=True)
    events = sent(streamed.events([*thought, last(0)]))

    message = {"role": "assistant", "content": "Yes", "refusal": None, "reasoning_content": "Hm."}
    assert whole["choices"][0]["message"] == message
    assert [choice["delta"] for choice in choices(events)] == [
        {"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "Yes"}, {},
    ]  # fmt: skip
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert events[-2]["usage"] == whole["usage"]


def test_calls_of_two_choices_have_numbers_of_their_own():
    chunks = [text(1, "".join(RAIN)), text(0, "No."), last(0), text(1, "".join(RAIN)), last(1)]

    first, second = complete_json(thoughtful(n=2), chunks)["choices"]

    assert (first["message"]["content"], first["finish_reason"]) == ("No.", "stop")
    assert len({call["id"] for call in second["message"]["tool_calls"]}) == 2


HI = TokenInfo(7, b"Hi", -0.5, (Candidate(7, b"Hi", -0.5), Candidate(9, b"\xc3", -1.5)))
END = TokenInfo(2, b"", -0.1)
LISTED = {
    "id": 7, "token": "Hi", "bytes": [72, 105], "logprob": -0.5,
    "top_logprobs": [
        {"id": 7, "token": "Hi", "bytes": [72, 105], "logprob": -0.5},
        {"id": 9, "token": "\ufffd", "bytes": [0xC3], "logprob": -1.5},
    ],
}  # fmt: skip
LAST = {"id": 2, "token": "", "bytes": [], "logprob": -0.1, "top_logprobs": []}


def test_tokens_are_listed_with_their_text():
    chunks = [Chunk(0, "Hi", 1, tokens=(HI,)), Chunk(0, "", 1, Finish.STOP, tokens=(END,))]

    (whole,) = complete_json(thoughtful(n_probs=2), chunks)["choices"]
    streamed = choices(sent(thoughtful(stream=True, n_probs=2).events(chunks)))

    assert whole["logprobs"] == {"content": [LISTED, LAST], "refusal": None}
    assert [(choice["delta"], choice["logprobs"]) for choice in streamed] == [
        ({"content": "Hi"}, {"content": [LISTED], "refusal": None}),
        ({}, {"content": [LAST], "refusal": None}),
        ({}, None),
    ]


def test_done_is_what_clients_wait_for():
    assert DONE == b"data: [DONE]\n\n"


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(("shape", "type"), [(CHAT, ChatChunk), (TEXT, TextCompletion)])
def test_prepared_text_has_the_form_that_its_type_has(shape: str, type: Any, usage: bool) -> None:
    answering = answer(shape, stream=True, usage=usage)

    prepared = answering.events([text(0, "Hé\n")])

    encoded = msgspec.json.encode(msgspec.json.decode(prepared.removeprefix(b"data: "), type=type))
    assert prepared == b"data: " + encoded + b"\n\n"


# Guesses of next tokens.

GUESSED = {"drafted_tokens": 9, "accepted_tokens": 6}


@pytest.mark.parametrize("stream", [False, True])
def test_guesses_are_in_the_usage_where_an_answer_was_predicted(stream):
    answering = answer_to(Job((Text("x"),), n=2, prediction="Hello"), CHAT, stream, usage=True)
    chunks = [Chunk(i, "Hello", 7, Finish.STOP, **TERMINAL, **GUESSED) for i in (0, 1)]

    whole = sent(answering.events(chunks))[-2] if stream else complete_json(answering, chunks)

    assert whole["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 12,
        "rejected_prediction_tokens": 6,
    }


def test_guesses_of_an_answer_that_was_not_predicted_are_in_the_timings_alone():
    whole = complete_json(answer(CHAT), [Chunk(0, "Hello", 7, Finish.STOP, **TERMINAL, **GUESSED)])

    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert (whole["timings"]["draft_n"], whole["timings"]["draft_n_accepted"]) == (9, 6)
    assert "draft_n" not in complete_json(answer(CHAT), [text(0, "Hello"), last(0)])["timings"]
