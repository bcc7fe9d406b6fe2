"""Anthropic's Messages API on the wire: answers, streams, and errors of its own shape wherever they come from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import Answer, Connection, named_events, request

MESSAGES = "/v1/messages"
HI: dict[str, Any] = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def test_a_stream_says_what_the_whole_message_says(connection: Connection) -> None:
    whole = connection.post(HI, MESSAGES).json
    events = named_events(connection.post({**HI, "stream": True}, MESSAGES).body)

    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == whole["content"][0]["text"] != ""
    assert len(deltas) > 1
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert whole["usage"]["output_tokens"] == events[-2]["usage"]["output_tokens"] == 5
    assert events[-1] == {"type": "message_stop"}


def test_a_prompt_has_as_many_tokens_as_are_counted(connection: Connection) -> None:
    fields = {"messages": HI["messages"], "system": "Be brief."}

    counted = connection.post(fields, f"{MESSAGES}/count_tokens").json
    usage = connection.post({**HI, **fields}, MESSAGES).json["usage"]

    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_the_first_event_has_as_many_tokens_of_the_prompt_as_the_last(connection: Connection) -> None:
    begin, *_, delta, _ = named_events(connection.post({**HI, "stream": True}, MESSAGES).body)

    usage = begin["message"]["usage"]
    assert usage == {**delta["usage"], "output_tokens": 0}
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0


def test_an_answer_that_was_begun_goes_on(connection: Connection) -> None:
    begun = {"max_tokens": 1, "messages": [*HI["messages"], {"role": "assistant", "content": "hello"}]}

    counted = connection.post({"messages": begun["messages"]}, f"{MESSAGES}/count_tokens").json["input_tokens"]

    assert counted == len("user: hi\nassistant: hello")
    assert connection.post(begun, MESSAGES).status == 200


@pytest.mark.parametrize(
    "path", [f"{MESSAGES}/count_tokens", "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"]
)
def test_a_prompt_that_is_too_long_is_counted(connection: Connection, path: str) -> None:
    bodies = [{"messages": [{"role": "user", "content": text}], "input": text} for text in ("x", "x" * 5000)]

    short, long = (connection.post(body, path).json["input_tokens"] for body in bodies)

    assert long == short + 4999
    assert_error(connection.post({**bodies[1], "max_tokens": 5}, MESSAGES), 400, "invalid_request_error", "4096")


def assert_error(answer: Answer, status: int, kind: str, words: str = "") -> None:
    assert answer.status == status, answer.body
    assert answer.json["type"] == "error"
    assert set(answer.json) == {"type", "error", "request_id"}
    assert answer.json["error"]["type"] == kind
    assert words in answer.json["error"]["message"]
    assert answer.json["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        ({**HI, "messages": []}, "messages"),
        ({**HI, "messages": "x"}, "messages"),
        ({"max_tokens": 5}, "messages"),
        ({**HI, "temperature": "hot", "stream": True}, "temperature"),
        ({**HI, "messages": [{"role": "user", "content": "x" * 100_000}]}, "4096"),
    ],
)
def test_what_cannot_be_taken_is_an_invalid_request(connection: Connection, path: str, body: Any, words: str) -> None:
    assert_error(connection.post(body, path), 400, "invalid_request_error", words)


def test_errors_of_the_door_have_the_shape_of_the_room(start: Servers) -> None:
    server = start.start(api_keys="right", strict_model=1, max_body_bytes=2000)
    right = {"X-Api-Key": "right"}

    with server.connect() as connection:
        assert_error(connection.post(HI, MESSAGES), 401, "authentication_error", "key")
    with server.connect() as connection:
        unread = connection.post({**HI, "system": "x" * 2000}, MESSAGES, right)
        assert_error(unread, 413, "request_too_large", "2000")
    with server.connect() as connection:
        assert_error(connection.post({**HI, "model": "x"}, MESSAGES, right), 404, "not_found_error", "'x'")
        assert connection.post(HI, MESSAGES, right).status == 200
        assert connection.post(HI, MESSAGES, {"Authorization": "Bearer right"}).status == 200
        assert connection.post({**HI, "model": "synthetic"}, MESSAGES, right).headers["request-id"]


def test_a_full_queue_is_a_rate_limit(start: Servers) -> None:
    server = start.start(slots=1, queue=0)

    with server.connect() as first, server.connect() as second:
        first.send(request("POST", MESSAGES, {**HI, "max_tokens": 4000, "stream": True}))
        first.head()
        server.wait_metric("running", 1)
        answer = second.post(HI, MESSAGES)

    assert_error(answer, 429, "rate_limit_error")
    assert answer.headers["retry-after"] == "1"


def test_a_client_that_leaves_is_noticed(server: Server) -> None:
    server.wait_idle()
    before = server.cancelled()

    with server.connect() as connection:
        connection.send(request("POST", MESSAGES, {**HI, "max_tokens": 4000, "stream": True}))
        connection.head()

    server.wait_idle(within=10)
    assert server.cancelled() == before + 1
