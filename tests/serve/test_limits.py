"""Bodies too large, too short or never sent, and queues that are full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, request
from tests.support.waiting import eventually

MB = 1024 * 1024
LIMIT = MB


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Server:
    """Takes bodies of up to 1 MiB."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(max_body_bytes=LIMIT)


@pytest.fixture
def connection(small: Server) -> Iterator[Connection]:
    with small.connect() as connection:
        yield connection


def n_prompt_tokens(server: Server) -> float:
    return server.metric("prompt_tokens_total")


@pytest.mark.parametrize("length", [LIMIT + 1, 10**11])
def test_a_body_that_says_it_is_too_large_is_refused_unread(connection: Connection, length: int) -> None:
    connection.send(request("POST", CHAT, None, {"Content-Length": str(length)}))  # and nothing of the body

    answer = connection.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert str(LIMIT) in answer.error["message"]


def test_a_body_of_the_limit_is_read(connection: Connection) -> None:
    body = b'{"prompt": "x", "max_tokens": 1, "unknown": "'
    body += b"y" * (LIMIT - len(body) - 2) + b'"}'

    assert connection.post(body, "/v1/completions").status == 200
    assert connection.post(body + b" ", "/v1/completions").status == 413


def test_a_chunked_body_over_the_limit_is_refused_and_not_kept(small: Server, connection: Connection) -> None:
    assert small.get("/health")[0] == 200
    before = small.worker.peak_bytes()
    chunk = b"%x\r\n%s\r\n" % (MB, b"x" * MB)

    connection.send(request("POST", CHAT, None, {"Transfer-Encoding": "chunked"}))
    try:
        for _ in range(64):
            connection.send(chunk)
        connection.send(b"0\r\n\r\n")
    except OSError:
        pass  # it need not read what it will not take

    assert connection.answer().status == 413
    assert small.worker.peak_bytes() - before < 8 * MB


def test_bodies_that_are_too_large_together_are_refused_for_now(start: Servers) -> None:
    server = start.start(max_body_bytes=LIMIT, bodies_bytes=LIMIT)
    body = b'{"prompt": "x", "max_tokens": 1, "unknown": "' + b"y" * (LIMIT - 100) + b'"}'

    def second() -> Answer:
        with server.connect() as connection:
            return connection.post(body, "/v1/completions")

    with server.connect() as first:
        first.send(request("POST", "/v1/completions", body)[:-10])
        eventually(lambda: second().status == 503, what="the first body is nearly there")

        refused = second()
        assert (refused.status, refused.error["type"]) == (503, "unavailable_error")
        assert refused.headers["retry-after"] == "1"
        first.send(body[-10:])
        assert first.answer().status == 200
    eventually(lambda: second().status == 200, what="room for the next body")


@pytest.mark.parametrize(
    "path", ["//evil.example/v1/models", "//v1//models", "/v1//models", "/v1/models/", "/\\evil.example/..", "/health/"]
)
def test_no_path_redirects_to_whatever_host_was_sent(connection: Connection, path: str) -> None:
    answer = connection.ask("GET", path)

    assert answer.status == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_chunked_body_is_never_cut_at_the_limit_and_taken_for_whole(connection: Connection, path: str) -> None:
    body = b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'
    body = body.ljust(LIMIT) + b"more"

    connection.send(request("POST", path, None, {"Transfer-Encoding": "chunked"}))
    connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    assert connection.answer().status == 413


@pytest.mark.parametrize("kind", ["length", "chunked", "half a chunk"])
@pytest.mark.parametrize("end", ["leave", "shut"])
def test_a_body_that_ends_early_is_never_executed(small: Server, kind: str, end: str) -> None:
    small.wait_idle()
    before = n_prompt_tokens(small)
    body = b'{"prompt": "x", "max_tokens": 1}'
    heads = {"length": {"Content-Length": "100"}}
    bodies = {"length": body, "chunked": b"%x\r\n%s\r\n" % (len(body), body), "half a chunk": b"64\r\n" + body}

    with small.connect() as connection:
        connection.send(request("POST", "/v1/completions", None, heads.get(kind, {"Transfer-Encoding": "chunked"})))
        connection.send(bodies[kind])
        if end == "shut":
            connection.socket.shutdown(1)
            assert connection.answer().status == 400

    small.wait_metric("readers", 0)
    assert n_prompt_tokens(small) == before


@pytest.mark.parametrize(
    "lengths",
    [{"Content-Length": "5", "Transfer-Encoding": "chunked"}, {"Content-Length": "-5"}, {"Content-Length": "0x10"}],
)
def test_a_length_in_doubt_is_refused_and_the_connection_closed(
    connection: Connection, lengths: dict[str, str]
) -> None:
    connection.send(request("POST", CHAT, None, lengths) + request("GET", "/health"))

    assert connection.answer().status == 400
    assert connection.is_closed()


@pytest.mark.parametrize(
    ("garbage", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400,)),
        (b"GET /\r\n\r\n", (400,)),
        (b"GET /health HTTP/9.9\r\n\r\n", (400, 505)),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", (400, 414)),
        (b"GET /health HTTP/1.1\r\n" + b"X-%d: y\r\n" * 2 + b"A: " + b"x" * 10_000 + b"\r\n\r\n", (400, 431)),
        (b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(200)) + b"\r\n", (400, 431)),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", (400,)),
        (b"GET /health HTTP/1.1\r\nHost: a\r\n: nameless\r\n\r\n", (400,)),
    ],
    ids=["TLS", "0.9", "9.9", "long line", "long field", "many fields", "NUL", "nameless"],
)
def test_what_is_not_http_is_refused_and_hurts_nobody(
    small: Server, connection: Connection, garbage: bytes, statuses: tuple[int, ...]
) -> None:
    connection.send(garbage)

    assert connection.answer().status in statuses
    assert connection.is_closed()
    assert small.health() == "ok"


def test_a_full_queue_refuses_with_429_and_a_time_to_come_back(start: Servers) -> None:
    server = start.start(slots=1, queue=2)
    asking = [server.connect() for _ in range(3)]
    asking[0].send(request("POST", CHAT, chat(stream=True, max_tokens=2000)))
    server.wait_metric("running", 1)
    for connection in asking[1:]:
        connection.send(request("POST", CHAT, chat(max_tokens=1)))
    server.wait_metric("waiting", 2)

    with server.connect() as refused:
        for is_stream in (False, True):
            answer = refused.post(chat(stream=is_stream))
            assert answer.status == 429
            assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "queue_full")
            assert re.fullmatch(r"[1-9]\d*", answer.headers["retry-after"])
            assert answer.headers["content-type"] == "application/json"
        assert server.metric('jobs_total{outcome="refused"}') == 2

        asking[0].leave()
        assert [connection.answer().status for connection in asking[1:]] == [200, 200]
        assert refused.post(chat(max_tokens=1)).status == 200
    for connection in asking:
        connection.leave()


def test_a_key_takes_its_share_of_queue_and_slots_and_leaves_others_theirs(start: Servers) -> None:
    server = start.start(slots=2, queue=100, queue_per_key=3, api_keys="greedy,modest")
    greedy, modest = ({"Authorization": f"Bearer {key}"} for key in ("greedy", "modest"))
    with ExitStack() as opened:
        asking = [opened.enter_context(server.connect()) for _ in range(3)]
        for connection in asking:
            connection.send(request("POST", CHAT, chat(stream=True, max_tokens=2000), greedy))
            assert connection.head().status == 200
        refused = opened.enter_context(server.connect()).post(chat(), headers=greedy)
        last = opened.enter_context(server.connect())
        last.send(request("POST", CHAT, chat(stream=True, max_tokens=1), modest))
        head = last.head()

        asking[0].leave()

        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert "3 of at most 3 tasks of this API key" in refused.error["message"]
        assert head.status == 200
        # It came behind the third, whose key has a slot already.
        assert b"[DONE]" in b"".join(last.body(head))
        for connection in asking[1:]:
            connection.leave()


def test_three_hundred_streams_cost_no_thread(start: Servers) -> None:
    server = start.start(slots=300, model="synthetic:?tokens_per_s=2")
    before = server.worker.n_threads()
    streams = [server.connect() for _ in range(300)]
    for connection in streams:
        connection.send(request("POST", CHAT, chat(stream=True)))

    server.wait_metric("running", 300)

    assert server.metric("open_streams") == 300
    assert server.worker.n_threads() == before
    for connection in streams:
        connection.leave()
    server.wait_idle()
