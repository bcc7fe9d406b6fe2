"""The Responses API on the wire: answers, streams, what is stored, and for whom."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, named_events

RESPONSES = "/v1/responses"
HI: dict[str, Any] = {"input": "hi", "max_output_tokens": 5}


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


@pytest.mark.parametrize("path", [RESPONSES, "/responses"])
def test_a_stream_says_what_the_whole_response_says(connection: Connection, path: str) -> None:
    whole = connection.post(HI, path).json
    events = named_events(connection.post({**HI, "stream": True}, path).body)

    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text_of(whole) == text_of(events[-1]["response"]) != ""
    assert len(deltas) > 1
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[-1]["type"], whole["status"]) == ("response.incomplete", "incomplete")
    assert whole["usage"]["output_tokens"] == events[-1]["response"]["usage"]["output_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_can_be_read_again_and_deleted(connection: Connection, stream: bool) -> None:
    answer = connection.post({**HI, "stream": stream, "metadata": {"a": "b"}}, RESPONSES)
    response = named_events(answer.body)[-1]["response"] if stream else answer.json
    place = f"{RESPONSES}/{response['id']}"

    again = connection.ask("GET", place)
    deleted = connection.ask("DELETE", place)

    assert (again.status, again.json) == (200, response)
    assert (deleted.status, deleted.json) == (200, {"id": response["id"], "object": "response", "deleted": True})
    for method in ("GET", "DELETE"):
        assert_not_found(connection.ask(method, place))


def test_a_conversation_that_is_too_long_is_truncated_where_that_is_asked_for(connection: Connection) -> None:
    conversation = [
        {"role": role, "content": f"{i} " + "word " * 30} for i in range(20) for role in ("user", "assistant")
    ]
    question = {"role": "user", "content": "And now?"}
    asked = {"input": [*conversation, question], "max_output_tokens": 5}

    context = connection.ask("GET", "/props").json["default_generation_settings"]["n_ctx"]
    refused = connection.post(asked, RESPONSES)
    answered = connection.post({**asked, "truncation": "auto"}, RESPONSES)
    again = {**HI, "previous_response_id": answered.json["id"], "truncation": "auto"}
    gone_on = connection.post(again, RESPONSES)

    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    for answer in (answered, gone_on):
        assert (answer.status, answer.json["truncation"]) == (200, "auto")
        n_free = context - answer.json["usage"]["input_tokens"]
        assert HI["max_output_tokens"] <= n_free < 600, "no more is dropped than has to be"


def assert_not_found(answer: Answer, param: str | None = None) -> None:
    assert answer.status == 404
    assert (answer.error["code"], answer.error["param"]) == ("response_not_found", param)


def test_a_response_that_is_not_to_be_stored_is_not(connection: Connection) -> None:
    response = connection.post({**HI, "store": False}, RESPONSES).json

    assert_not_found(connection.ask("GET", f"{RESPONSES}/{response['id']}"))


def test_a_conversation_goes_on_from_what_was_stored(connection: Connection) -> None:
    first = connection.post({**HI, "instructions": "Be brief."}, RESPONSES).json
    next_one = {"input": "and?", "max_output_tokens": 1, "previous_response_id": first["id"]}

    second = connection.post(next_one, RESPONSES).json
    counted = connection.post(next_one, f"{RESPONSES}/input_tokens").json

    prompt = f"user: hi\nassistant: {text_of(first)}\nuser: and?\nassistant:".encode()
    assert counted == {"object": "response.input_tokens", "input_tokens": len(prompt)}
    assert second["usage"]["input_tokens"] == len(prompt)
    assert second["previous_response_id"] == first["id"]
    unknown = connection.post({**next_one, "previous_response_id": "resp_1"}, RESPONSES)
    assert_not_found(unknown, "previous_response_id")


def test_a_chats_tokens_are_counted(connection: Connection) -> None:
    counted = connection.post(chat("hi"), f"{CHAT}/input_tokens").json

    assert counted == {"object": "response.input_tokens", "input_tokens": len("user: hi\nassistant:")}
    assert counted["input_tokens"] == connection.post(chat("hi", max_tokens=1)).json["usage"]["prompt_tokens"]


def test_tokens_are_counted_at_the_short_paths_too(connection: Connection) -> None:
    for path, body in ((CHAT, chat("hi")), (RESPONSES, {"input": "hi"})):
        counted = [connection.post(body, f"{begun}/input_tokens").json for begun in (path, path.removeprefix("/v1"))]
        assert counted[0] == counted[1]
        assert counted[0]["input_tokens"] > 0


COMPACT = f"{RESPONSES}/compact"


@pytest.fixture(scope="module")
def short(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a server whose answers are short."""
    kept: Servers = request.getfixturevalue("_kept")
    with kept.start(model="synthetic:?tokens_per_s=0&length=40").connect() as connection:
        yield connection


@pytest.mark.parametrize("path", [COMPACT, "/responses/compact"])
def test_a_compacted_conversation_goes_on(short: Connection, path: str) -> None:
    first = short.post({"input": "one"}, RESPONSES).json
    compacted = short.post({"previous_response_id": first["id"], "input": "two", "instructions": "Be."}, path).json

    *told, compaction = compacted["output"]
    assert compacted["object"] == "response.compaction"
    assert [(item["role"], item["content"][0]["text"]) for item in told] == [("user", "one"), ("user", "two")]
    summary = base64.b64decode(compaction["encrypted_content"]).decode().removeprefix("corosrv:1:")
    assert (compaction["type"], summary != "") == ("compaction", True)
    assert compacted["usage"]["output_tokens"] > 0
    assert_not_found(short.ask("GET", f"{RESPONSES}/{compacted['id']}"))

    going_on = {"input": [*compacted["output"], {"role": "user", "content": "three"}]}
    response = short.post(going_on, RESPONSES).json
    listed = short.ask("GET", f"{RESPONSES}/{response['id']}/input_items?order=asc").json["data"]
    assert listed[:3] == compacted["output"]
    again = short.post({"input": going_on["input"]}, COMPACT).json["output"]
    assert [item["type"] for item in again] == ["message", "message", "message", "compaction"]


def test_a_summary_takes_a_part_of_the_context(start: Servers) -> None:
    with start.start(model="synthetic:?tokens_per_s=0&length=4000", ctx=1024).connect() as connection:
        compacted = connection.post({"input": "hi"}, COMPACT).json

    assert compacted["usage"]["output_tokens"] == 256


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": "hi", "previous_response_id": "resp_none"}, 404, "previous_response_id"),
        ({"input": [{"type": "compaction"}]}, 400, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAAAABo"}]}, 400, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction", "encrypted_content": "ä"}]}, 400, "input[0].encrypted_content"),
        (
            {"input": [{"type": "compaction", "encrypted_content": "Y29yb3NydjoxOv8="}]},
            400,
            "input[0].encrypted_content",
        ),
    ],
)
def test_what_cannot_be_compacted_is_refused(connection: Connection, body: Any, status: int, param: str) -> None:
    answer = connection.post(body, COMPACT)

    assert (answer.status, answer.error["param"]) == (status, param)


def test_what_is_stored_belongs_to_its_key(start: Servers) -> None:
    server = start.start(api_keys="mine,yours")
    mine, yours = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}

    with server.connect() as connection:
        id = connection.post(HI, RESPONSES, mine).json["id"]
        place = f"{RESPONSES}/{id}"

        for method in ("GET", "DELETE"):
            assert_not_found(connection.ask(method, place, headers=yours))
        stolen = connection.post({**HI, "previous_response_id": id}, RESPONSES, yours)
        assert_not_found(stolen, "previous_response_id")
        assert connection.ask("GET", place, headers={"X-Api-Key": "mine"}).status == 200


def test_the_oldest_make_room_for_the_newest(start: Servers) -> None:
    server = start.start(response_store_bytes=4000)

    with server.connect() as connection:
        ids = [connection.post({"input": "hi", "max_output_tokens": 1}, RESPONSES).json["id"] for _ in range(8)]
        statuses = [connection.ask("GET", f"{RESPONSES}/{id}").status for id in ids]

    assert statuses == sorted(statuses, reverse=True)
    assert {statuses[0], statuses[-1]} == {404, 200}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({}, "input"),
        ({**HI, "background": True, "store": False}, "background"),
        ({**HI, "tools": [{"type": "web_search"}], "stream": True}, "tools[0].type"),
        ({"input": "x" * 5000, "stream": True}, "input"),
    ],
)
def test_what_cannot_be_taken_is_refused_before_the_stream(connection: Connection, body: Any, param: str) -> None:
    answer = connection.post(body, RESPONSES)

    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("query", ["stream=true", "include=message.output_text.logprobs"])
def test_a_stored_response_is_not_streamed_again(connection: Connection, query: str) -> None:
    id = connection.post(HI, RESPONSES).json["id"]

    answer = connection.ask("GET", f"{RESPONSES}/{id}?{query}")

    assert (answer.status, answer.error["param"]) == (400, query.split("=")[0])


def test_a_response_is_read_with_what_there_is_nothing_of_included(connection: Connection) -> None:
    stored = connection.post(HI, RESPONSES).json

    answer = connection.ask("GET", f"{RESPONSES}/{stored['id']}?include[]=reasoning.encrypted_content")

    assert (answer.status, answer.json) == (200, stored)


def test_the_input_of_a_stored_response_is_listed_with_the_conversation_before_it(connection: Connection) -> None:
    first = connection.post({**HI, "input": "one"}, RESPONSES).json
    second = connection.post({**HI, "input": "two", "previous_response_id": first["id"]}, RESPONSES).json

    listed = connection.ask("GET", f"{RESPONSES}/{second['id']}/input_items?order=asc").json

    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert [item["content"][0]["text"] for item in listed["data"]] == ["one", text_of(first), "two"]
    assert listed["has_more"] is False
