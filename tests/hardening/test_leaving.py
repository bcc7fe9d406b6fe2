"""Rows 57 to 68: streams, and clients that leave them or stop reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hardening.watch import HealthWatch
from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Connection, chat, events, request, text_of
from tests.support.waiting import eventually

NOTICED = 10.0  # seconds in which a client that left is noticed; what it asked for would take a minute
ENDS = pytest.mark.parametrize("end", ["leave", "reset"])
KINDS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def narrow(request: pytest.FixtureRequest) -> Server:
    """Two slots; a prompt of 4,000 tokens takes 2 s to read."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=2, model="synthetic:?tokens_per_s=50&prefill_tokens_per_s=2000")


@pytest.fixture(autouse=True)
def _nothing_left(narrow: Server) -> Iterator[None]:
    narrow.wait_idle()
    with HealthWatch(narrow):
        yield
        narrow.wait_idle()


def begin(server: Server, **fields: object) -> Connection:
    connection = server.connect()
    connection.send(request("POST", CHAT, chat(**({"max_tokens": 3000} | fields))))
    return connection


@contextmanager
def both_slots_taken(server: Server) -> Iterator[None]:
    taken = [begin(server, stream=True) for _ in range(2)]
    server.wait_metric("running", 2)
    yield
    for connection in taken:
        connection.leave()


@ENDS
@KINDS
def test_h057_h059_who_leaves_while_it_is_decoded_for_frees_its_slot(narrow: Server, is_stream: bool, end: str) -> None:
    connection = begin(narrow, stream=is_stream)
    narrow.wait_metric("running", 1)

    getattr(connection, end)()

    narrow.wait_metric("running", 0, within=NOTICED)


@ENDS
@KINDS
def test_h058_who_leaves_the_queue_is_never_decoded_for(narrow: Server, is_stream: bool, end: str) -> None:
    with both_slots_taken(narrow):
        before = narrow.metric("prompt_tokens_total")
        waiting = begin(narrow, stream=is_stream)
        narrow.wait_metric("waiting", 1)

        getattr(waiting, end)()

        narrow.wait_metric("waiting", 0, within=NOTICED)
        assert narrow.metric("prompt_tokens_total") == before


@ENDS
def test_h059_who_leaves_while_its_prompt_is_read_is_noticed(narrow: Server, end: str) -> None:
    cancelled = narrow.cancelled()
    connection = narrow.connect()
    connection.send(request("POST", CHAT, chat("x" * 3900, max_tokens=3000)))
    narrow.wait_metric("running", 1)

    getattr(connection, end)()

    narrow.wait_idle()
    assert narrow.cancelled() == cancelled + 1


def test_h060_who_leaves_touches_nobody_else(narrow: Server) -> None:
    fields = {"max_tokens": 60, "stream": True, "seed": 7}
    with begin(narrow, **fields) as alone:
        expected = text_of(events(alone.answer().body))

    with begin(narrow, **(fields | {"max_tokens": 3000})) as staying:
        staying.head()
        pieces = staying.pieces()
        for _ in range(5):
            leaving = begin(narrow, stream=True)
            narrow.wait_metric("running", 2)
            leaving.reset()
            narrow.wait_metric("running", 1)
        text = ""
        while len(text) < len(expected):
            text += text_of(events(next(pieces)))

    assert text.startswith(expected)


def test_h061_who_polls_the_state_hides_nobody(narrow: Server) -> None:
    is_over = threading.Event()

    def poll() -> None:
        with narrow.connect() as connection:
            while not is_over.wait(0.02):
                connection.ask("GET", "/metrics")

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        with begin(narrow, stream=True):
            connection = begin(narrow)
            narrow.wait_metric("running", 2)
            connection.leave()
            narrow.wait_metric("running", 1, within=NOTICED)
    finally:
        is_over.set()
        polling.join(5)


def test_h062_hundreds_of_resets_leave_nothing(narrow: Server) -> None:
    for number in range(200):
        begin(narrow, stream=number % 2 == 0).reset()

    narrow.wait_idle()


def test_h062_a_thousand_connects_that_leave_cost_nothing(narrow: Server) -> None:
    worker = narrow.worker
    before = worker.n_descriptors()
    for start in range(0, 1500, 300):
        connected = [narrow.connect() for _ in range(300)]
        for number, connection in enumerate(connected, start):
            connection.reset() if number % 2 else connection.leave()

    eventually(lambda: worker.n_descriptors() <= before + 8, what="all of them are forgotten")
    with narrow.connect() as connection:
        assert connection.post(chat(max_tokens=1)).status == 200


def test_h064_a_failure_in_mid_stream_is_one_event_and_the_end(start: Servers) -> None:
    server = start.start(drain_s=0)
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=3000)))
        head = connection.head()
        server.wait_metric("running", 1)
        server.signal(15)
        sent = events(b"".join(connection.body(head)))

    assert head.status == 200
    assert "[DONE]" not in sent
    assert [bool(event.get("error")) for event in sent].count(True) == 1
    assert "shutting down" in sent[-1]["error"]["message"]
    assert all(choice["finish_reason"] is None for event in sent[:-1] for choice in event["choices"])


def test_h065_headers_come_at_once_and_comments_while_it_waits(start: Servers) -> None:
    server = start.start(slots=1, sse_ping_interval=0.2)
    with server.connect() as first, server.connect() as waiting:
        first.send(request("POST", CHAT, chat(stream=True, max_tokens=3000)))
        server.wait_metric("running", 1)
        began = time.monotonic()
        waiting.send(request("POST", CHAT, chat(stream=True)))
        head = waiting.head()
        pieces = waiting.body(head)

        assert head.status == 200
        assert b'"role":"assistant"' in next(pieces)
        assert next(pieces) == next(pieces) == b":\n\n"
        assert time.monotonic() - began < 20  # of the minute that the first one takes


def test_h066_a_stream_is_read_on_by_its_caller_alone(narrow: Server) -> None:
    mine = {"X-Conversation-Id": "mine", "Authorization": "Bearer one"}
    with narrow.connect() as one, narrow.connect() as other:
        one.send(request("POST", CHAT, chat(stream=True, max_tokens=20), mine))
        whole = one.answer().body
        stranger = other.ask("GET", "/v1/stream?conv_id=mine", headers={"Authorization": "Bearer two"})
        again = other.ask("GET", "/v1/stream?conv_id=mine", headers={"Authorization": "Bearer one"})

    assert events(whole)[-1] == "[DONE]"
    assert (stranger.status, again.body) == (404, whole)


def test_h068_who_accepts_nothing_is_dropped_and_the_others_go_on(start: Servers) -> None:
    server = start.start(write_timeout_s=1, slots=2, ctx=100_000, model="synthetic:?tokens_per_s=20000")
    worker = server.worker
    before = worker.n_descriptors()
    stalled = server.connect(receive_buffer=2048)
    stalled.send(request("POST", CHAT, chat(stream=True, max_tokens=90_000)))

    with HealthWatch(server):
        server.wait_metric('jobs_total{outcome="cancelled"}', 1)
        server.wait_idle()

    eventually(lambda: worker.n_descriptors() <= before, what="its connection is gone")
    with stalled, pytest.raises(ConnectionResetError):
        stalled.answer()


def test_h068_who_takes_no_plain_answers_is_dropped_too(start: Servers) -> None:
    """It sends requests ahead, whose answers fill what the system keeps for it."""
    server = start.start(write_timeout_s=1)
    worker = server.worker
    before = worker.n_descriptors()
    with server.connect(receive_buffer=2048, timeout=1) as stalled:
        with pytest.raises(TimeoutError):
            stalled.send(request("GET", "/v1/models") * 200_000)

        eventually(lambda: worker.n_descriptors() <= before, what="its connection is gone")
