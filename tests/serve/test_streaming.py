"""Streams on the wire, byte by byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import Server
from tests.serve.wire import CHAT, Answer, Connection, chat, events, request, text_of


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connection:
        yield connection


def stream(connection: Connection, path: str = CHAT, **body: Any) -> Answer:
    body = {"max_tokens": 4, "temperature": 0, "stream": True} | body
    return connection.post(body if "prompt" in body else chat(**body), path)


def test_a_stream_says_that_it_is_one(connection: Connection) -> None:
    headers = stream(connection).headers

    assert headers["content-type"].split(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers


def test_a_chat_stream_is_role_texts_finish_done(connection: Connection) -> None:
    first, *texts, last, done = events(stream(connection).body)

    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": None}, "logprobs": None, "finish_reason": None}
    ]
    assert texts
    for chunk in texts:
        (choice,) = chunk["choices"]
        assert list(choice["delta"]) == ["content"]
        assert choice["delta"]["content"]
        assert choice["finish_reason"] is None
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


def test_id_created_and_model_are_the_same_in_every_chunk(connection: Connection) -> None:
    *chunks, _ = events(stream(connection, max_tokens=20).body)

    members = {(c["id"], c["object"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}
    assert len(members) == 1
    (id, kind, created, model, _), *_ = members
    assert id.startswith("chatcmpl-")
    assert kind == "chat.completion.chunk"
    assert abs(created - time.time()) < 60
    assert model == "synthetic"


def test_timings_ride_on_the_last_chunk_alone_and_usage_on_none(connection: Connection) -> None:
    *earlier, last, _ = events(stream(connection).body)

    assert not any("timings" in chunk or "usage" in chunk for chunk in earlier)
    assert "usage" not in last
    assert last["timings"]["predicted_n"] == 4
    assert last["timings"]["prompt_n"] + last["timings"]["cache_n"] == len("user: hi\nassistant:")


def test_usage_when_asked_for_comes_once_and_last(connection: Connection) -> None:
    answer = stream(connection, stream_options={"include_usage": True}, n=2)

    *earlier, last, done = events(answer.body)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] and "timings" not in chunk for chunk in earlier)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] == len("user: hi\nassistant:")
    assert last["timings"]["predicted_n"] == 8


def test_each_choice_has_one_role_chunk_and_one_finish(connection: Connection) -> None:
    *chunks, _ = events(stream(connection, n=3).body)

    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        assert [choice["finish_reason"] for choice in own[1:]].count("length") == 1
        assert own[-1]["finish_reason"] == "length"


def test_a_text_stream_carries_text(connection: Connection) -> None:
    answer = stream(connection, "/v1/completions", prompt="Once", stream_options={"include_usage": True})

    *chunks, finish, usage, done = events(answer.body)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all(chunk["choices"][0]["text"] for chunk in chunks)
    assert finish["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert usage["choices"] == []
    assert done == "[DONE]"


def test_a_streamed_text_is_the_text(connection: Connection) -> None:
    streamed = events(stream(connection, max_tokens=40).body)
    whole = stream(connection, max_tokens=40, stream=False)

    assert text_of(streamed) == whole.json["choices"][0]["message"]["content"]


def test_a_text_ends_before_its_stop_string_streamed_or_not(connection: Connection) -> None:
    full = stream(connection, max_tokens=40, stream=False).json["choices"][0]["message"]["content"]
    stop = full[20:26]
    expected = full[: full.index(stop)]

    streamed = events(stream(connection, max_tokens=40, stop=stop).body)
    whole = stream(connection, max_tokens=40, stop=["never there", stop], stream=False).json["choices"][0]

    assert text_of(streamed) == whole["message"]["content"] == expected
    assert streamed[-2]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_a_waiting_stream_gets_headers_at_once_and_comments_meanwhile(start: Any) -> None:
    server = start.start(slots=1, sse_ping_interval=0.1)
    with server.connect() as first, server.connect() as second:
        first.send(request("POST", CHAT, chat(stream=True, max_tokens=2000)))
        server.wait_metric("running", 1)

        second.send(request("POST", CHAT, chat(stream=True, max_tokens=1)))
        assert second.head().status == 200
        pieces = second.pieces()
        assert b'"role":"assistant"' in next(pieces)
        assert next(pieces) == next(pieces) == b":\n\n"

        first.leave()
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat()),
        ("/v1/completions", {"prompt": "x"}),
        ("/completion", {"prompt": "x"}),
        ("/v1/messages", chat(max_tokens=1)),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_a_request_says_after_how_many_seconds_of_silence_a_comment_comes(start: Any, path: str, body: Any) -> None:
    server = start.start(slots=1, sse_ping_interval=-1)
    with server.connect() as first, server.connect(timeout=10) as second:
        first.send(request("POST", CHAT, chat(stream=True, max_tokens=2000)))
        server.wait_metric("running", 1)

        second.send(request("POST", path, {**body, "stream": True, "sse_ping_interval": 1}))
        assert second.head().status == 200
        pieces = second.pieces()
        next(pieces)
        began = time.monotonic()

        assert b"ping" in (comment := next(pieces)) or comment == b":\n\n"
        assert time.monotonic() - began < 5


# The connection


def test_a_connection_serves_on_after_streams_and_errors(connection: Connection) -> None:
    for _ in range(2):
        assert stream(connection).body.endswith(b"data: [DONE]\n\n")
        assert connection.post({"messages": []}).status == 400
        assert connection.post(b"not JSON").status == 400
        assert connection.ask("GET", "/nowhere").status == 404
        assert connection.ask("GET", CHAT).status == 405
        assert connection.ask("HEAD", "/v1/models").status == 200
        assert stream(connection, stream=False).status == 200


def test_pipelined_requests_are_answered_in_order(connection: Connection) -> None:
    connection.send(
        request("POST", CHAT, chat(max_tokens=10, stream=True))
        + request("POST", CHAT, chat(max_tokens=3))
        + request("GET", "/nowhere")
        + request("GET", "/health")
    )

    assert len(events(connection.answer().body)) >= 4
    assert connection.answer().json["usage"]["completion_tokens"] == 3
    assert connection.answer().status == 404
    assert connection.answer().json["status"] == "ok"


def test_a_client_that_expects_100_continue_gets_it(connection: Connection) -> None:
    head, _, body = request("POST", CHAT, chat(max_tokens=1), {"Expect": "100-continue"}).partition(b"\r\n\r\n")

    connection.send(head + b"\r\n\r\n")
    assert connection.head().status == 100
    connection.send(body)
    assert connection.answer().status == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_http_1_0_is_served_and_closed(server: Server, is_stream: bool) -> None:
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(max_tokens=2, stream=is_stream), version="1.0"))
        answer = connection.answer()

        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert answer.body.endswith(b"data: [DONE]\n\n") if is_stream else answer.json["usage"]
        assert connection.is_closed()


def test_a_slowly_sent_request_is_served(connection: Connection, server: Server) -> None:
    whole = request("POST", CHAT, chat(max_tokens=1))
    for at in range(0, len(whole), 17):
        connection.send(whole[at : at + 17])
        assert server.health() == "ok"  # a round trip, so that the pieces arrive apart

    assert connection.answer().status == 200


def test_a_chunked_body_is_read(connection: Connection) -> None:
    body = b'{"prompt": "Once", "max_tokens": 2}'
    head = request("POST", "/v1/completions", None, {"Transfer-Encoding": "chunked"})
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:10], body[10:]))

    connection.send(head + chunks + b"0\r\n\r\n")

    assert connection.answer().json["usage"]["completion_tokens"] == 2
    assert connection.ask("GET", "/health").status == 200


# What every answer has


def test_answers_in_json_have_their_length_and_their_type(connection: Connection) -> None:
    for answer in (
        connection.post(chat(max_tokens=1)),
        connection.post(b"{}"),
        connection.ask("GET", "/v1/models"),
        connection.ask("GET", "/health"),
        connection.ask("GET", "/nowhere"),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/v1/models", "/models", "/v1/models/synthetic", "/metrics"])
def test_head_works_where_get_does(connection: Connection, path: str) -> None:
    head, get = connection.ask("HEAD", path), connection.ask("GET", path)

    assert (head.status, get.status) == (200, 200)
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/health", "GET"),
    ],
)
def test_a_wrong_verb_is_told_the_right_ones(connection: Connection, method: str, path: str, allowed: str) -> None:
    answer = connection.ask(method, path)

    assert answer.status == 405
    assert allowed in answer.headers["allow"].replace(" ", "").split(",")
    assert answer.error["code"] == "method_not_allowed"
    assert allowed in answer.error["message"]


def test_a_sane_request_id_comes_back(connection: Connection) -> None:
    for status, body in ((200, chat(max_tokens=1)), (200, chat(max_tokens=1, stream=True)), (400, {})):
        answer = connection.post(body, headers={"X-Request-Id": "mine-1"})

        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine-1")


@pytest.mark.parametrize("sent", [None, "", "a b", "<script>", "x" * 129])
def test_any_other_request_gets_an_id_of_ours(connection: Connection, sent: str | None) -> None:
    headers = {} if sent is None else {"X-Request-Id": sent}

    ids = {connection.ask("GET", "/health", headers=headers).headers["x-request-id"] for _ in range(2)}

    assert len(ids) == 2
    assert all(id.startswith("req_") for id in ids)
