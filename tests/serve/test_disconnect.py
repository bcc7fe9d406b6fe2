"""Clients that go away are noticed at once, in every state, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Connection, chat, request
from tests.support.waiting import eventually

NOTICED = 10.0  # seconds in which a client that left is noticed; what it asked for would take over a minute
ENDS = ["leave", "reset"]
KINDS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
LEAVING = pytest.mark.parametrize("end", ENDS)


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> Server:
    """One slot, and a prompt of 4,000 tokens takes 2 s to read, in 8 steps."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=1, model="synthetic:?tokens_per_s=50&prefill_tokens_per_s=2000")


@pytest.fixture(autouse=True)
def _quiet(slow: Server) -> Iterator[None]:
    slow.wait_idle()
    yield
    slow.wait_idle()


def ask(server: Server, body: bytes) -> Connection:
    connection = server.connect()
    connection.send(body)
    return connection


@KINDS
@LEAVING
@pytest.mark.parametrize("behind", [b"", request("POST", CHAT, chat())], ids=["alone", "pipelined"])
def test_a_client_that_leaves_while_it_is_decoded_for_frees_its_slot(
    slow: Server, is_stream: bool, end: str, behind: bytes
) -> None:
    cancelled, generated = slow.cancelled(), slow.metric("generated_tokens_total")
    connection = ask(slow, request("POST", CHAT, chat(stream=is_stream)) + behind)
    eventually(lambda: slow.metric("generated_tokens_total") > generated, what="the first token")

    getattr(connection, end)()

    slow.wait_metric("running", 0, within=NOTICED)
    slow.wait_idle(within=NOTICED)
    assert slow.cancelled() == cancelled + 1
    assert slow.metric("generated_tokens_total") < generated + 1000


@KINDS
@LEAVING
def test_a_client_that_sends_its_next_request_later_is_watched_on(slow: Server, is_stream: bool, end: str) -> None:
    connection = ask(slow, request("POST", CHAT, chat(stream=is_stream)))
    slow.wait_metric("running", 1)
    connection.send(request("GET", "/health"))
    generated = slow.metric("generated_tokens_total")
    eventually(lambda: slow.metric("generated_tokens_total") > generated + 2, what="tokens after the second request")

    getattr(connection, end)()

    slow.wait_idle(within=NOTICED)


@KINDS
@LEAVING
def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_slot(slow: Server, is_stream: bool, end: str) -> None:
    cancelled = slow.cancelled()
    connection = ask(slow, request("POST", "/v1/completions", {"prompt": "x" * 4000, "stream": is_stream}))
    slow.wait_metric("running", 1)

    getattr(connection, end)()

    slow.wait_idle(within=NOTICED)
    assert slow.cancelled() == cancelled + 1


@KINDS
@LEAVING
def test_a_client_that_leaves_the_queue_is_never_decoded_for(slow: Server, is_stream: bool, end: str) -> None:
    with ask(slow, request("POST", CHAT, chat(stream=True))) as first:
        slow.wait_metric("running", 1)
        cancelled, read = slow.cancelled(), slow.metric("prompt_tokens_total")
        waiting = [ask(slow, request("POST", CHAT, chat("x" * 100, stream=is_stream))) for _ in range(5)]
        slow.wait_metric("waiting", 5)

        for connection in waiting:
            getattr(connection, end)()

        slow.wait_metric("waiting", 0, within=NOTICED)
        slow.wait_metric("readers", 1, within=NOTICED)
        eventually(lambda: slow.cancelled() == cancelled + 5)
        assert slow.metric("prompt_tokens_total") == read
        assert slow.metric("running") == 1  # the one who stayed is not touched
        assert first.head().status == 200


def test_all_choices_of_a_request_end_with_it(start: Servers) -> None:
    server = start.start(slots=4)
    connection = ask(server, request("POST", CHAT, chat(n=10, stream=True)))
    server.wait_metric("running", 4)
    server.wait_metric("waiting", 6)

    connection.leave()

    server.wait_idle(within=NOTICED)
    assert server.cancelled() == 10


def test_two_hundred_who_leave_at_any_moment_leave_nothing_behind(start: Servers) -> None:
    server = start.start(slots=4, model="synthetic:?tokens_per_s=50&prefill_tokens_per_s=20000")
    with server.client() as client:
        expected = client.chat.completions.create(model="", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
    server.wait_idle()
    descriptors, threads = server.worker.n_descriptors(), server.worker.n_threads()

    def visit(number: int) -> None:
        """Sends some of a request, reads some of the answer, and is gone."""
        chance = random.Random(number)
        whole = request("POST", CHAT, chat("x" * chance.choice([1, 3000]), stream=chance.random() < 0.7))
        connection = server.connect()
        if chance.random() < 0.2:
            connection.send(whole[: chance.randrange(len(whole))])
        else:
            connection.send(whole)
            if chance.random() < 0.5:
                connection.socket.settimeout(chance.random() / 5)
                with contextlib.suppress(TimeoutError):
                    connection.socket.recv(chance.choice([1, 300, 3000]))
        getattr(connection, chance.choice(ENDS))()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(visit, range(200)))

    server.wait_idle()
    eventually(lambda: server.worker.n_descriptors() <= descriptors, what="as few descriptors as before")
    assert server.worker.n_threads() == threads
    with server.connect() as connection:
        answer = connection.post(chat(max_tokens=5))
    assert answer.json["choices"][0]["message"]["content"] == expected.choices[0].message.content
    assert "Traceback" not in server.log


def test_a_client_that_reads_nothing_is_ended_and_the_others_go_on(start: Servers) -> None:
    server = start.start(
        write_timeout_s=1, reader_bytes=1024, ctx=1_000_000, slots=2, model="synthetic:?tokens_per_s=0"
    )
    with server.connect(receive_buffer=1024) as deaf:
        deaf.send(request("POST", CHAT, chat(stream=True)))
        # Out of the batch, not in anybody's way; on a busy machine it may have been ended before anybody looks.
        eventually(lambda: server.metric("paused") == 1 or server.cancelled() == 1, what="a pause of the first")

        with server.connect() as other:
            assert other.post(chat(max_tokens=50)).status == 200
        eventually(lambda: server.cancelled() == 1, what="the client that reads nothing is ended")
        server.wait_idle()
        with server.connect() as other:
            assert other.post(chat(max_tokens=50, stream=True)).body.endswith(b"data: [DONE]\n\n")


def test_little_is_kept_for_a_client_that_stops_reading(start: Servers) -> None:
    server = start.start(reader_bytes=1024, ctx=1_000_000, slots=2, model="synthetic:?tokens_per_s=0")
    with server.connect(receive_buffer=4096) as stalled:
        stalled.send(request("POST", CHAT, chat(stream=True)))
        server.wait_metric("paused", 1)

        assert server.metric("generated_tokens_total") < 10_000  # the system would keep 40,000 by itself


@pytest.mark.holds_the_hub("a model without a rate gives more than a greenlet can send on")
def test_a_client_that_reads_slowly_gets_it_all(start: Servers) -> None:
    server = start.start(write_timeout_s=1, reader_bytes=1024, ctx=1_000_000, model="synthetic:?tokens_per_s=0")
    with server.connect(receive_buffer=4096) as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=200_000)))
        assert connection.head().status == 200
        server.wait_metric("paused", 1)  # it has stopped for us

        body = b"".join(connection.pieces())

        assert body.count(b'"delta":{"content":') > 100
        assert body.endswith(b"data: [DONE]\n\n")
    server.wait_idle()


@KINDS
def test_a_client_that_leaves_is_a_line_of_log_and_no_warning(start: Servers, is_stream: bool) -> None:
    server = start.start(model="synthetic:?tokens_per_s=50", log_format="json")
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=1)).status == 200  # a normal end, which is no line
        connection.send(request("POST", CHAT, chat(stream=is_stream), {"X-Request-Id": "who-left"}))
        server.wait_metric("running", 1)
        connection.leave()
        server.wait_idle()

    eventually(lambda: "job_ended" in server.log, what="a line about the job")
    (line,) = [line for line in server.log.splitlines() if "job_ended" in line]
    assert '"level": "info"' in line
    members = json.loads(line[line.index("{") :])
    assert (members["id"], members["model"], members["outcome"]) == ("who-left", "synthetic", "cancelled")
    assert "ended in an error" not in server.log
    warnings = [line for line in server.log.splitlines() if "WARNING" in line]
    assert [line for line in warnings if "the hub was blocked" not in line] == []  # as on a busy machine
