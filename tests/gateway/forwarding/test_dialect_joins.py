"""Streams of llama-server's completions, of messages and of responses, joined to answers as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.base.errors import WorkerLost
from corosrv.gateway.forwarding.event_join import ABORT, EventJoin, MessageJoin, NativeJoin, ResponseJoin, StreamedError
from corosrv.gateway.forwarding.streamed_body import as_stream


def feed(join: EventJoin, *values: Any) -> EventJoin:
    for value in values:
        named = isinstance(value, dict) and "type" in value
        join.feed(f"event: {value['type']}\n".encode() if named else b"")
        join.feed(b"data: " + json.dumps(value).encode() + b"\n\n")
    return join


# Which bodies become streams.


@pytest.mark.parametrize(
    ("path", "fields", "kind"),
    [
        ("/completion", {"prompt": "a"}, NativeJoin),
        ("/completions", {"prompt": [1, 2], "n": 1}, NativeJoin),
        ("/v1/messages", {"messages": []}, MessageJoin),
        ("/v1/responses", {"input": "a"}, ResponseJoin),
        ("/responses", {"input": "a", "background": False}, ResponseJoin),
    ],
)
def test_an_answer_as_a_whole_is_asked_for_as_a_stream(path: str, fields: dict[str, Any], kind: type[EventJoin]):
    streamed = as_stream(path, json.dumps({"model": "m", **fields}).encode())

    assert streamed is not None
    body, join = streamed
    assert json.loads(body) == {"model": "m", **fields, "stream": True}
    assert isinstance(join, kind)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/completion", {"prompt": "a", "stream": True}),
        ("/completion", {"prompt": ["a"]}),
        ("/completion", {"prompt": [[1], [2]]}),
        ("/completion", {"prompt": "a", "n": 2}),
        ("/completion", {"prompt": "a", "n_cmpl": 2}),
        ("/completion", {"prompt": "a", "response_fields": ["content"]}),
        ("/v1/messages", {"messages": [], "stream": True}),
        ("/v1/responses", {"input": "a", "stream": True}),
        ("/v1/responses", {"input": "a", "background": True}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/messages/count_tokens", {"messages": []}),
    ],
)
def test_other_requests_go_on_as_they_were_sent(path: str, fields: dict[str, Any]):
    assert as_stream(path, json.dumps(fields).encode()) is None


# llama-server's completions.


def token(text: str, id: int, **members: Any) -> dict[str, Any]:
    return {"index": 0, "content": text, "tokens": [id], "stop": False, "tokens_predicted": id, **members}


END = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 2, "model": "m"}


@pytest.mark.parametrize(("has_tokens", "tokens"), [(False, []), (True, [1, 2])])
def test_a_completion_has_the_texts_of_all_events_and_the_members_of_the_last(has_tokens: bool, tokens: list[int]):
    join = feed(
        NativeJoin(has_tokens=has_tokens),
        token("a", 1, completion_probabilities=["x"]),
        token("b", 2, completion_probabilities=["y"]),
        {**END, "generation_settings": {"stream": True, "seed": 1}},
    )

    assert join.is_complete
    assert join.answer(ABORT) == {
        **END,
        "content": "ab",
        "tokens": tokens,
        "completion_probabilities": ["x", "y"],
        "generation_settings": {"stream": False, "seed": 1},
    }


def test_a_completion_that_was_cut_off_stopped_by_the_abort():
    join = feed(NativeJoin(has_tokens=False), token("a", 1), token("b", 2))

    assert not join.is_complete
    answer = join.answer(ABORT)
    assert (answer["content"], answer["stop"], answer["stop_type"], answer["tokens_predicted"]) == (
        "ab",
        True,
        ABORT,
        2,
    )


def test_a_completion_of_which_nothing_came_is_empty():
    answer = NativeJoin(has_tokens=True).answer(ABORT)

    assert (answer["content"], answer["tokens"], answer["stop_type"]) == ("", [], ABORT)


# Anthropic's messages.


START = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 0},
    },
}  # fmt: skip


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **members}}


BLOCKS = (
    {"type": "ping"},
    begin(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="hm"),
    delta(0, "signature_delta", signature="s"),
    {"type": "content_block_stop", "index": 0},
    begin(1, type="text", text=""),
    delta(1, "text_delta", text="a"),
    delta(1, "text_delta", text="b"),
    delta(1, "citations_delta", citation={"c": 1}),
    begin(2, type="tool_use", id="t", name="f", input={}),
    delta(2, "input_json_delta", partial_json='{"x"'),
)


def test_a_message_has_its_blocks_and_its_end():
    stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}}
    rest = delta(2, "input_json_delta", partial_json=":1}")
    join = feed(MessageJoin("m"), START, *BLOCKS, rest, stop, {"type": "message_stop"})

    assert join.is_complete
    answer = join.answer(ABORT)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ab", "citations": [{"c": 1}]},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
    ]
    assert (answer["id"], answer["stop_reason"], answer["stop_sequence"]) == ("msg_1", "tool_use", None)
    assert answer["usage"] == {"input_tokens": 5, "output_tokens": 7}


def test_a_message_that_was_cut_off_stopped_by_the_abort_and_its_half_call_has_no_arguments():
    join = feed(MessageJoin("m"), START, *BLOCKS)

    assert not join.is_complete
    answer = join.answer(ABORT)
    assert answer["stop_reason"] == ABORT
    assert answer["content"][2]["input"] == {}


def test_a_message_of_which_nothing_came_is_empty():
    answer = MessageJoin("m").answer(ABORT)

    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "m")
    assert (answer["content"], answer["stop_reason"], answer["usage"]["output_tokens"]) == ([], ABORT, 0)


# Responses.


def of_item(kind: str, number: int = 0, **members: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": number, **members}


CREATED = {
    "type": "response.created",
    "response": {"id": "resp_1", "status": "in_progress", "output": [], "error": None},
}
ITEMS = (
    of_item("output_item.added", item={"id": "msg", "type": "message", "status": "in_progress", "content": []}),
    of_item("content_part.added", content_index=0, part={"type": "output_text", "text": ""}),
    of_item("output_text.delta", content_index=0, delta="a"),
    of_item("output_text.delta", content_index=0, delta="b"),
    of_item(
        "output_item.added", 1, item={"id": "fc", "type": "function_call", "status": "in_progress", "arguments": ""}
    ),
    of_item("function_call_arguments.delta", 1, delta='{"x"'),
    of_item("reasoning_summary_text.delta", 1, summary_index=0, delta="not known here"),
)


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_a_response_is_the_one_of_its_last_event(end: str):
    response = {"id": "resp_1", "status": end, "output": ["all"], "error": None}

    join = feed(ResponseJoin("m"), CREATED, *ITEMS, {"type": f"response.{end}", "response": response})

    assert join.is_complete
    assert join.answer(ABORT) == response


def test_a_response_that_was_cut_off_is_incomplete_by_the_abort_and_has_what_came():
    done = {"id": "msg", "type": "message", "status": "completed", "content": [{"type": "output_text", "text": "ab!"}]}
    join = feed(ResponseJoin("m"), CREATED, *ITEMS, of_item("output_item.done", item=done))

    assert not join.is_complete
    answer = join.answer(ABORT)
    assert (answer["id"], answer["status"], answer["incomplete_details"]) == ("resp_1", "incomplete", {"reason": ABORT})
    assert answer["output"] == [
        done,
        {"id": "fc", "type": "function_call", "status": "incomplete", "arguments": '{"x"'},
    ]


def test_the_text_of_an_open_item_is_in_the_answer():
    answer = feed(ResponseJoin("m"), CREATED, *ITEMS).answer(ABORT)

    assert answer["output"][0]["content"] == [{"type": "output_text", "text": "ab"}]
    assert answer["output"][0]["status"] == "incomplete"


def test_a_response_of_which_nothing_came_is_empty():
    answer = ResponseJoin("m").answer(ABORT)

    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["model"], answer["output"]) == ("response", "m", [])


# Streams that are none.


@pytest.mark.parametrize(
    ("join", "event", "error"),
    [
        (NativeJoin(has_tokens=False), {"error": {"message": "broke"}}, {"message": "broke"}),
        (MessageJoin("m"), {"type": "error", "error": {"type": "api_error"}}, {"type": "api_error"}),
        (ResponseJoin("m"), {"type": "response.failed", "response": {"error": {"code": "x"}}}, {"code": "x"}),
        (ResponseJoin("m"), {"type": "error", "code": "x"}, {"type": "error", "code": "x"}),
    ],
)
def test_an_error_event_is_the_answer(join: EventJoin, event: dict[str, Any], error: dict[str, Any]):
    with pytest.raises(StreamedError) as raised:
        feed(join, event)

    assert raised.value.body["error"] == error


@pytest.mark.parametrize(
    ("join", "event"),
    [
        (NativeJoin(has_tokens=False), []),
        (NativeJoin(has_tokens=False), {}),
        (NativeJoin(has_tokens=False), {"content": 7}),
        (NativeJoin(has_tokens=False), {"content": "", "tokens": 7}),
        (MessageJoin("m"), "text"),
        (MessageJoin("m"), {}),
        (MessageJoin("m"), {"type": "message_start", "message": 7}),
        (MessageJoin("m"), begin(1, type="text")),
        (MessageJoin("m"), delta(0, "text_delta", text="a")),
        (MessageJoin("m"), {"type": "message_delta"}),
        (ResponseJoin("m"), 7),
        (ResponseJoin("m"), {}),
        (ResponseJoin("m"), {"type": "response.created", "response": 7}),
        (ResponseJoin("m"), of_item("output_item.added", 1, item={})),
        (ResponseJoin("m"), of_item("output_item.added", item=7)),
        (ResponseJoin("m"), of_item("output_item.done", -1, item={})),
        (ResponseJoin("m"), of_item("output_text.delta", content_index=0, delta="a")),
    ],
)
def test_what_is_no_stream_of_the_dialect_is_refused(join: EventJoin, event: Any):
    with pytest.raises(WorkerLost, match="no answer to the request"):
        feed(join, event)


def test_a_text_for_a_part_that_has_not_begun_is_refused():
    join = feed(ResponseJoin("m"), of_item("output_item.added", item={"content": []}))

    with pytest.raises(WorkerLost, match="no answer to the request"):
        feed(join, of_item("output_text.delta", content_index=0, delta="a"))
