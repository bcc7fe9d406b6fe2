"""Blocks to a message and its events."""

from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from corosrv.base.errors import JobFailed, QueueFull
from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.anthropic.answers import MessageAnswer
from corosrv.dialects.chat.parts import Part
from tests.support.answers import complete_json, sent
from tests.support.parsers import TICK, HandDrivenParser, call, end, text, thought

CARD = ModelCard("tiny", created=1)
EVERYTHING: list[Part] = [thought("hm"), text("See: "), text("it"), *call(0, "look", '{"at"', ":1}"), end("tool_calls")]


def answer(*rows: list[Part]) -> MessageAnswer:
    return MessageAnswer(CARD, HandDrivenParser(*rows), "req_1")


def complete(*rows: list[Part]) -> Any:
    """The answer that is not streamed, as its client has it."""
    return complete_json(answer(*rows), TICK)


def streamed(*rows: list[Part]) -> list[dict[str, Any]]:
    answering = answer(*rows)
    return sent(answering.first() + b"".join(answering.events(TICK) for _ in rows))


def test_a_text_has_its_events_in_order():
    assert streamed([text("Hel")], [text("lo")], [end()])[2:-2] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
    ]


def test_thoughts_that_are_omitted_have_an_empty_block():
    blocks = [[thought("hm"), text("Hello"), end()]]
    whole = complete_json(MessageAnswer(CARD, HandDrivenParser(*blocks), "req_1", omits_thoughts=True), TICK)
    answering = MessageAnswer(CARD, HandDrivenParser(*blocks), "req_1", omits_thoughts=True)

    events = sent(answering.first() + answering.events(TICK))

    assert whole["content"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "Hello"},
    ]
    assert [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"] == [
        "thinking",
        "text",
    ]
    assert [event["delta"] for event in events if event["type"] == "content_block_delta"] == [
        {"type": "signature_delta", "signature": ""},
        {"type": "text_delta", "text": "Hello"},
    ]


def test_a_stream_begins_with_an_empty_message_and_ends_with_its_stop():
    begin, ping, *_, delta, stop = streamed([text("Hello"), end()])

    assert begin["type"] == "message_start"
    assert begin["message"].pop("id").startswith("msg_")
    assert begin["message"] == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert ping == {"type": "ping"}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert stop == {"type": "message_stop"}


def test_thoughts_and_calls_have_deltas_of_their_own():
    deltas = [event["delta"] for event in streamed(EVERYTHING) if event["type"] == "content_block_delta"]

    assert deltas == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": ""},
        {"type": "text_delta", "text": "See: "},
        {"type": "text_delta", "text": "it"},
        {"type": "input_json_delta", "partial_json": '{"at"'},
        {"type": "input_json_delta", "partial_json": ":1}"},
    ]


def test_each_block_is_begun_and_ended_once_in_order():
    events = [(event["type"].removeprefix("content_block_"), event["index"]) for event in streamed(EVERYTHING)[2:-2]]

    assert [event for event in events if event[0] != "delta"] == [
        (kind, number) for number in range(3) for kind in ("start", "stop")
    ]


def test_a_whole_message_has_its_blocks():
    whole = complete(EVERYTHING)

    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "See: it"},
        {"type": "tool_use", "id": "call_0", "name": "look", "input": {"at": 1}},
    ]
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tiny")


@pytest.mark.parametrize(
    ("ended", "reason", "word"),
    [
        (end(), "end_turn", None),
        (end("length"), "max_tokens", None),
        (end("tool_calls"), "tool_use", None),
        (end("stop", "END"), "stop_sequence", "END"),
    ],
)
def test_why_it_ended_is_told(ended, reason, word):
    whole = complete([text("a"), ended])
    delta = streamed([text("a"), ended])[-2]["delta"]

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, word)
    assert delta == {"stop_reason": reason, "stop_sequence": word}


def test_cached_and_other_tokens_add_up_to_the_prompt():
    answering = answer([text("a"), end()])

    usage = complete_json(answering, [end().chunk])["usage"]

    assert usage == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 1,
    }


def test_a_call_that_was_cut_off_has_no_input():
    (block,) = complete([*call(0, "look", '{"at'), end("length")])["content"]

    assert block["input"] == {}


def test_a_failure_is_an_error_event_after_what_was_said():
    answering = answer([text("So")])
    answering.events(TICK)

    assert sent(answering.failure(JobFailed("it broke"))) == [
        {"type": "error", "error": {"type": "api_error", "message": "it broke"}, "request_id": "req_1"}
    ]
    assert sent(answering.failure(QueueFull("full")))[0]["error"]["type"] == "rate_limit_error"


def test_a_stream_that_fails_at_once_begins_all_the_same():
    failed = sent(answer().failure(JobFailed("it broke")))

    assert [event["type"] for event in failed] == ["message_start", "ping", "error"]


def test_anthropics_own_client_understands_every_event():
    adapter: Any = TypeAdapter(RawMessageStreamEvent)
    events = [event for event in streamed(EVERYTHING) if event["type"] != "ping"]

    message, buffers = None, {}
    for event in map(adapter.validate_python, events):
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)

    assert message is not None
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"at": 1}
    assert Message.model_validate(complete(EVERYTHING)).stop_reason == message.stop_reason == "tool_use"


def test_a_message_has_its_members_in_their_order():
    message = complete([text("a"), end()])

    assert list(message) == ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]
    assert list(message["content"][0]) == ["type", "text"]
