"""Events of a stream, joined to the answer that would have come without one."""

import json

import pytest

from corosrv.base.errors import WorkerLost
from corosrv.gateway.forwarding.event_join import StreamedError
from corosrv.gateway.forwarding.streamed_body import AnswerJoin


def events(*values) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values) + b"data: [DONE]\n\n"


def piece(index=0, finish=None, **delta):
    return {
        "id": "a",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": index, "delta": delta, "finish_reason": finish}],
    }


def joined(data: bytes, n: int = 1, is_chat: bool = True, unfinished=None):
    join = AnswerJoin(n, is_chat=is_chat)
    join.feed(data)
    return join.answer(unfinished)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_texts_of_each_choice_follow_each_other_however_the_bytes_are_cut(size: int):
    stream = b"data:\n\n" + events(
        piece(1, content="c"), piece(0, content="a"), piece(0, content="b"), piece(0, "stop"), piece(1, "length")
    )
    join = AnswerJoin(2, is_chat=True)

    for begin in range(0, len(stream), size):
        join.feed(stream[begin : begin + size])

    answer = join.answer()
    assert join.is_complete
    assert answer["object"] == "chat.completion"
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]] == [
        ("ab", "stop"),
        ("c", "length"),
    ]


def test_usage_and_the_like_are_the_answers():
    usage = {"prompt_tokens": 1, "completion_tokens": 2}

    answer = joined(
        events(piece(content="a"), piece(finish="stop"), {"choices": [], "usage": usage, "timings": {"n": 1}})
    )

    assert (answer["usage"], answer["timings"], answer["model"]) == (usage, {"n": 1}, "m")


def test_calls_and_thoughts_are_put_together():
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"x":1}'}}

    answer = joined(
        events(
            piece(reasoning_content="hm"),
            piece(tool_calls=[call]),
            piece(tool_calls=[more]),
            piece(finish="tool_calls"),
        )
    )

    message = answer["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]
    assert (message["reasoning_content"], message["content"]) == ("hm", None)


def test_likelihoods_follow_each_other():
    choice = {"index": 0, "text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}, "finish_reason": None}

    answer = joined(events({"choices": [choice]}, {"choices": [choice]}), is_chat=False)

    assert answer["choices"][0]["text"] == "aa"
    assert answer["choices"][0]["logprobs"] == {"tokens": ["a", "a"], "token_logprobs": [-1.0, -1.0]}


def test_what_was_cut_off_has_the_reason_for_that_and_choices_that_never_began_are_empty():
    answer = joined(events(piece(0, content="so far")), n=2, unfinished="abort")

    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]] == [
        ("so far", "abort"),
        ("", "abort"),
    ]


def test_an_answer_is_complete_when_each_choice_has_its_reason():
    join = AnswerJoin(2, is_chat=True)
    join.feed(events(piece(0, "stop")))

    assert not join.is_complete


def test_an_error_in_the_stream_is_raised():
    with pytest.raises(StreamedError, match="broke"):
        joined(events(piece(content="a"), {"error": {"message": "broke"}}))


@pytest.mark.parametrize(
    "data",
    [b"data: {\n", b"data: []\n", b'data: {"choices":[{"index":-1}]}\n', b'data: {"choices":[{"index":9999}]}\n',
     b'data: {"choices":[{"delta":{"content":7}}]}\n', b'data: {"choices":[{"delta":{"tool_calls":[{"index":3}]}}]}\n',
     b'data: {"choices":[{"delta":7}]}\n', b'data: {"choices":7}\n', b'data: {"choices":[7]}\n',
     b'data: {"choices":[{"index":"x"}]}\n', b'data: {"choices":[{"logprobs":[7]}]}\n'],
)  # fmt: skip
def test_what_is_no_completion_is_refused(data):
    with pytest.raises(WorkerLost, match="no answer to the request"):
        joined(data)
