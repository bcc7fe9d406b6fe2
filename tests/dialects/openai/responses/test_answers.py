"""Blocks to a response and its events."""

from typing import Any

import openai
import pytest
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseOutputText, ResponseStreamEvent
from pydantic import TypeAdapter

from corosrv.base.errors import JobFailed
from corosrv.contracts.jobs import Candidate, Chunk, Finish, TokenInfo
from corosrv.dialects.chat.parts import AnswerText, Part
from corosrv.dialects.chat.prepare import TextParser
from corosrv.dialects.generation.call import AnswerOptions
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.store import Stored
from tests.support.answers import as_json, complete_json, sent
from tests.support.parsers import LAST_TICK, TICK, HandDrivenParser, call, end, text, thought

ECHO = {
    "model": "tiny",
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 0.8,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 0.95,
    "truncation": "disabled",
}
ASKED = ({"role": "user", "content": "Hi"},)


def answer(*rows: list[Part], kept: list[Stored] | None = None, reasoning_tokens: int = 0) -> ResponseAnswer:
    parser = HandDrivenParser(*rows, reasoning_tokens=reasoning_tokens)
    return ResponseAnswer(ECHO, parser, ASKED, None if kept is None else kept.append)


def streamed(*rows: list[Part]) -> list[dict[str, Any]]:
    answering = answer(*rows)
    return sent(answering.first() + b"".join(answering.events(TICK) for _ in rows))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def told(*chunks: Chunk, **wanted: bool) -> list[dict[str, Any]]:
    answering = ResponseAnswer(ECHO, TextParser(), ASKED, None, AnswerOptions(**wanted))
    return sent(answering.first() + answering.events(list(chunks)))


EVERYTHING: list[Part] = [thought("hm"), text("See: "), text("it"), *call(0, "look", '{"at"', ":1}"), end("tool_calls")]


def test_a_text_has_its_events_in_order():
    assert kinds(streamed([text("Hel")], [text("lo")], [end()])) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_thoughts_and_calls_have_theirs():
    assert kinds(streamed(EVERYTHING))[2:-1] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ]


def test_events_are_numbered_without_a_gap():
    events = streamed([thought("hm")], [text("a")], [end()])

    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_each_event_says_where_it_belongs():
    events = streamed(EVERYTHING)
    items = {event["output_index"]: event["item"]["id"] for event in events if event["type"].endswith("item.added")}

    assert [items[i][:3] for i in range(3)] == ["rs_", "msg", "fc_"]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]
            is_call = event["item_id"].startswith("fc_")
            assert event.get("content_index") == (None if is_call else 0)


def test_the_pieces_are_the_whole():
    events = streamed(EVERYTHING)

    def joined(stem: str) -> str:
        return "".join(event["delta"] for event in events if event["type"] == f"response.{stem}.delta")

    final = events[-1]["response"]
    assert joined("output_text") == "See: it" == final["output"][1]["content"][0]["text"]
    assert joined("reasoning_text") == "hm" == final["output"][0]["content"][0]["text"]
    assert joined("function_call_arguments") == '{"at":1}' == final["output"][2]["arguments"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]


def test_the_streamed_response_is_the_whole_one():
    whole = complete_json(answer(EVERYTHING), TICK)
    final = streamed(EVERYTHING)[-1]["response"]

    def without_ids(response: dict[str, Any]) -> dict[str, Any]:
        return {
            **response, "id": None, "created_at": None, "completed_at": None,
            "output": [{**item, "id": None} for item in response["output"]],
        }  # fmt: skip

    assert without_ids(final) == without_ids(whole)


def test_a_whole_response_has_these_members():
    whole = complete_json(answer([text("Hello"), end()]), LAST_TICK)

    assert whole.pop("id").startswith("resp_")
    assert len(whole["output"][0].pop("id")) > len("msg_") + 32
    assert isinstance(whole.pop("created_at"), int)
    assert isinstance(whole.pop("completed_at"), int)
    assert whole == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            }
        ],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 6,
        },
        **ECHO,
    }


def test_a_call_is_an_item():
    (item,) = complete_json(answer([*call(0, "look", '{"at":1}'), end("tool_calls")]), TICK)["output"]

    assert item.pop("id").startswith("fc_")
    assert item == {
        "type": "function_call",
        "call_id": "call_0",
        "name": "look",
        "arguments": '{"at":1}',
        "status": "completed",
    }


def test_what_is_cut_off_is_incomplete_and_only_its_last_item():
    events = streamed([thought("hm"), text("So"), end("length")])

    final = events[-1]["response"]
    assert kinds(events)[-1] == "incomplete"
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["completed_at"] is None
    assert [item["status"] for item in final["output"]] == ["completed", "incomplete"]
    done = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ["completed", "incomplete"]


def test_a_failure_says_what_was_answered_so_far():
    answering = answer([text("So")])
    answering.first()
    answering.events(TICK)

    (event,) = sent(answering.failure(JobFailed("it broke")))

    assert event["type"] == "response.failed"
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "it broke"}
    (item,) = event["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "So")


def test_reasoning_tokens_are_told():
    usage = complete_json(answer([thought("hm"), end()], reasoning_tokens=7), TICK)["usage"]

    assert usage["output_tokens_details"] == {"reasoning_tokens": 7}


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_answered_is_kept_with_its_conversation(stream):
    kept: list[Stored] = []
    answering = answer(EVERYTHING, kept=kept)

    response = sent(answering.events(TICK))[-1]["response"] if stream else complete_json(answering, TICK)

    assert [as_json(stored.response) for stored in kept] == [response]
    assert kept[0].turns == (
        *ASKED,
        {
            "role": "assistant",
            "content": "See: it",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}],
        },
    )


def test_a_call_that_was_cut_off_is_kept_as_it_came():
    kept: list[Stored] = []

    complete_json(answer([*call(0, "look", '{"at'), end("length")], kept=kept), TICK)

    assert kept[0].turns[-1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at'}


def test_openais_own_client_understands_every_event():
    state: Any = ResponseStreamState(text_format=openai.omit, input_tools=[])
    adapter: Any = TypeAdapter(ResponseStreamEvent)

    fired = [event for one in streamed(EVERYTHING) for event in state.handle_event(adapter.validate_python(one))]

    assert [event.snapshot for event in fired if event.type == "response.output_text.delta"] == ["See: ", "See: it"]
    assert fired[-1].response.output_text == "See: it"
    assert Response.model_validate(fired[-1].response.model_dump()).output[2].type == "function_call"


# What llama-server's clients are told beside.

SO_FAR = {"prompt_tokens": 9, "cached_tokens": 1, "prompt_ms": 10.0, "decode_ms": 20.0}
HEL = Chunk(0, "Hel", 1, tokens=(TokenInfo(5, b"Hel", -0.5),), read_tokens=9, **SO_FAR)
LAST = Chunk(0, "", 0, Finish.LENGTH, read_tokens=9, **SO_FAR)


def test_how_much_of_the_prompt_was_read_is_told_while_it_is():
    reading = [Chunk(0, "", 0, read_tokens=n, prompt_tokens=9, cached_tokens=1) for n in (1, 5, 9)]

    events = told(*reading, HEL, LAST, prompt_progress=True)

    progress = [event for event in events if "prompt_progress" in event]
    assert kinds(progress) == ["in_progress"] * 3
    assert [event["prompt_progress"]["processed"] for event in progress] == [1, 5, 9]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_each_piece_of_text_may_come_with_the_timings_so_far():
    events = told(HEL, HEL, LAST, token_timings=True)

    assert [event["timings"]["predicted_n"] for event in events if event["type"].endswith("text.delta")] == [1, 2]


def test_a_stream_ends_with_its_timings():
    *_, last = told(HEL, LAST)

    assert (last["type"], last["timings"]["predicted_n"]) == ("response.incomplete", 1)


def test_a_call_of_a_function_in_a_namespace_names_both():
    parser = HandDrivenParser([*call(0, "room__look", "{}"), end("tool_calls")])
    origins = {"room__look": ("room", "look")}

    answering = ResponseAnswer(ECHO, parser, ASKED, None, origins=origins)
    events = sent(answering.first() + answering.events(TICK))

    named = [event.get("item", event) for event in events if event["type"].endswith(("item.done", "arguments.done"))]
    assert [(one["namespace"], one["name"]) for one in named] == 2 * [("room", "look")]


@pytest.mark.parametrize(
    ("pieces", "reason", "deltas"),
    [
        (['{"in', 'put": "a', "\\", 'n\\"b', '"}'], "tool_calls", ["a", '\n"b']),
        (['{\n  "input":"', "\\ud83d", "\\ude00", '\\u00e9"\n}'], "tool_calls", ["\U0001f600", "\xe9"]),
        (['{"input": "a', "\\u00"], "length", ["a"]),
        (['{"inp'], "length", []),
        (['{"input": ""}'], "tool_calls", []),
        (['{"code"', ": 1}"], "tool_calls", ['{"code": 1}']),
    ],
)
def test_a_call_of_a_custom_tool_has_its_input_as_text(pieces: list[str], reason: str, deltas: list[str]):
    parser = HandDrivenParser(*([part] for part in call(0, "code", *pieces)), [end(reason)])

    answering = ResponseAnswer(ECHO, parser, ASKED, None, customs={"code"})
    events = sent(answering.first() + b"".join(answering.events(TICK) for _ in range(len(pieces) + 2)))

    kind = "response.custom_tool_call_input."
    assert [event["delta"] for event in events if event["type"] == kind + "delta"] == deltas
    assert [event["input"] for event in events if event["type"] == kind + "done"] == ["".join(deltas)]
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["call_id"], item["input"]) == (
        "custom_tool_call", "code", "call_0", "".join(deltas)
    )  # fmt: skip
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)


def tokens(*words: str) -> tuple[TokenInfo, ...]:
    return tuple(
        TokenInfo(i, word.encode(), -0.5 * (i + 1), (Candidate(i, word.encode(), -0.5), Candidate(99, b"\xf0", -3.0)))
        for i, word in enumerate(words)
    )


def with_logprobs(*rows: list[Part]) -> ResponseAnswer:
    return ResponseAnswer(ECHO, HandDrivenParser(*rows), ASKED, None, AnswerOptions(logprobs=True))


def token_words(part: dict[str, Any]) -> list[str]:
    return [token["token"] for token in part["logprobs"]]


LIKELY: list[list[Part]] = [
    [thought("hm"), AnswerText(0, "Hello", tokens("Hel", "lo"))],
    [AnswerText(0, " you", tokens(" you")), AnswerText(0, "", tokens("</s>")), end()],
]


def test_logprobs_are_shown_with_the_text_that_they_belong_to():
    whole = with_logprobs([part for row in LIKELY for part in row])

    thoughts, message = complete_json(whole, TICK)["output"]

    assert "logprobs" not in thoughts["content"][0]
    (part,) = message["content"]
    assert token_words(part) == ["Hel", "lo", " you", "</s>"]
    assert part["logprobs"][1] == {
        "id": 1, "token": "lo", "bytes": [108, 111], "logprob": -1.0,
        "top_logprobs": [
            {"id": 1, "token": "lo", "bytes": [108, 111], "logprob": -0.5},
            {"id": 99, "token": "\ufffd", "bytes": [240], "logprob": -3.0},
        ],
    }  # fmt: skip
    ResponseOutputText.model_validate(part)


def test_each_event_of_a_text_shows_the_logprobs_of_its_own_tokens():
    streamed = with_logprobs(*LIKELY)

    events = sent(streamed.events(TICK) + streamed.events(TICK))

    shown = {name: [event for event in events if event["type"] == f"response.output_text.{name}"] for name in
             ("delta", "done")}  # fmt: skip
    assert [token_words(event) for event in shown["delta"]] == [["Hel", "lo"], [" you"], ["</s>"]]
    (done,) = shown["done"]
    assert token_words(done) == ["Hel", "lo", " you", "</s>"]
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == done["logprobs"]
    for event in (*shown["delta"], done):
        TypeAdapter(ResponseStreamEvent).validate_python(event)


def test_tokens_of_answers_without_logprobs_change_nothing():
    plain = ResponseAnswer(ECHO, HandDrivenParser(*LIKELY), ASKED, None)

    events = sent(plain.events(TICK) + plain.events(TICK))

    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"] == [[], []]


def test_thoughts_alone_get_no_text_for_their_last_token():
    thinking = with_logprobs([thought("hm"), AnswerText(0, "", tokens("</s>")), end()])
    empty = with_logprobs([AnswerText(0, "", tokens("</s>")), end()])

    assert [item["type"] for item in complete_json(thinking, TICK)["output"]] == ["reasoning"]
    assert token_words(complete_json(empty, TICK)["output"][0]["content"][0]) == ["</s>"]
