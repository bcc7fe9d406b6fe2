"""What a pool makes of answers: where they end, what they say of an upstream, and how they are aborted."""

from __future__ import annotations

import json
import threading

import pytest

from tests.fleet.upstreams.behaviours import Gate, InTurn, Streams, bodies, ends, one
from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.scripted_upstream import Behaviour, Handler, crashes, echo, fails_with, scripted

CHAT = "/v1/chat/completions"


def opens_breaker(pool: PoolProcess) -> None:
    """Makes five calls, of which the upstream fails each."""
    for i in range(5):
        pool.do("submit", names=[f"bad{i}"])
        pool.do("results", names=[f"bad{i}"])
    assert one(pool)["state"] == "open"


# How it comes.


def test_an_answer_that_comes_at_once_wakes_its_reader_once(pool: PoolProcess):
    def answers_at_once(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with scripted(answers_at_once) as a:
        pool.do("add", url=a.url)

        pool.do("submit", names=["call"])

        (result,) = pool.do("results", names=["call"])
        assert (result["body"], result["ends"], result["n_takes"]) == ("ok", ["ok"], 1)


# The breaker's trials.


def test_a_trial_is_decided_at_the_head_of_its_answer(pool: PoolProcess):
    long_answer = Streams()
    with scripted(InTurn(*[crashes] * 5, long_answer, echo)) as a:
        pool.do("add", url=a.url)
        opens_breaker(pool)

        pool.do("submit", names=["long"])
        pool.do("await_piece", name="long")
        pool.do("submit", names=["short"])

        assert ends(pool.do("results", names=["short"])) == [["ok"]]
        assert one(pool)["state"] == "ready"
        assert one(pool)["in_flight"] == 1
        long_answer.go_on.set()
        assert ends(pool.do("results", names=["long"])) == [["ok"]]


def test_a_trial_that_fails_by_its_head_opens_the_breaker_before_its_answer_is_whole(pool: PoolProcess):
    rest = threading.Event()

    def fails_slowly(handler: Handler) -> None:
        handler.send_response(500)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"n")
        assert rest.wait(20)
        handler.wfile.write(b"o")

    with scripted(InTurn(*[crashes] * 5, fails_slowly, echo)) as a:
        id, _ = pool.do("add", url=a.url)
        opens_breaker(pool)

        pool.do("submit", names=["slow"])
        pool.do("await_piece", name="slow")

        assert one(pool)["in_flight"] == 1
        pool.do("submit", names=["t1", "t2"])
        assert ends(pool.do("results", names=["t1", "t2"])) == [["ok"]] * 2
        pool.do("await_state", id=id, state="ready")
        rest.set()
        pool.do("results", names=["slow"])
        assert one(pool)["state"] == "ready"


def test_a_pool_whose_upstreams_wait_for_trials_is_ready_for_the_calls_that_try_them(pool: PoolProcess):
    with scripted(InTurn(*[crashes] * 5, echo)) as a:
        pool.do("add", url=a.url)
        opens_breaker(pool)

        pool.do("await_pool", state="ready")

        assert "single calls try it" in one(pool)["reason"]
        pool.do("submit", names=["t1", "t2"])
        assert ends(pool.do("results", names=["t1", "t2"])) == [["ok"]] * 2


# Busy upstreams.


def test_a_call_that_met_none_but_busy_upstreams_ends_as_429(pool: PoolProcess):
    with scripted(fails_with(429, Retry_After="0")) as a:
        pool.do("add", url=a.url)
        pool.do("add", url=a.url.replace("127.0.0.1", "localhost"))
        pool.do("submit", names=["c"])

        (result,) = pool.do("results")

    assert result["ends"] == ["UpstreamBusy"]
    assert result["error"] == [429, 1]


def test_a_503_that_names_a_time_pauses_its_upstream_and_the_call_runs_elsewhere(pool: PoolProcess):
    with scripted(fails_with(503, Retry_After="30")) as a, scripted() as b:
        pool.do("add", url=a.url)
        pool.do("add", url=b.url)
        for i in range(6):
            pool.do("submit", names=[f"c{i}"])
            pool.do("results")

        assert ends(pool.do("results")) == [["ok"]] * 6
        assert len(a.requests) == 1
        assert [u["reason"] for u in pool.do("upstreams")] == ["it has asked for a pause", ""]
        assert pool.do("upstreams")[0]["failed"] == {"UpstreamDown": 1}


# Where a stream ends.


def ends_late(last: bytes, rest: threading.Event, left: threading.Event | None = None) -> Behaviour:
    """Sends a stream's last event, and the end of its body not before `rest`, or until the other end has closed."""

    def behave(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(b'data: {"usage":{"completion_tokens":5}}\n\n')
        handler.chunk(last)
        if left is not None:
            handler.connection.settimeout(15)
            handler.connection.recv(1)
            left.set()
        assert rest.wait(20)
        handler.end_stream()

    return behave


@pytest.mark.parametrize(
    "last", [b"data: [DONE]\n\n", b'event: message_stop\ndata: {"type": "message_stop"}\n\n'], ids=["done", "stop"]
)
def test_a_permit_is_free_when_the_last_event_has_come_though_the_body_goes_on(pool: PoolProcess, last: bytes):
    rest, left = threading.Event(), threading.Event()
    with scripted(InTurn(ends_late(last, rest, left), echo)) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c0", "c1"])

        results = pool.do("results")

        assert ends(results) == [["ok"], ["ok"]]
        assert results[0]["body"].endswith(last.decode())
        assert not rest.is_set()
        assert left.wait(10), "the connection is kept for a body that does not end"
        rest.set()
        assert (one(pool)["permits"], one(pool)["tokens"]) == ([1, 1], 5)


def test_the_connection_of_a_stream_that_ends_soon_after_its_last_event_is_used_again(pool: PoolProcess):
    connections = set()

    def streams(handler: Handler) -> None:
        connections.add(handler.client_address)
        rest = threading.Event()
        rest.set()
        ends_late(b"data: [DONE]\n\n", rest)(handler)

    with scripted(streams) as a:
        pool.do("add", url=a.url, concurrency=1)
        for i in range(3):
            pool.do("submit", names=[f"c{i}"])
            pool.do("results")
            pool.do("await_idle_connection")

    assert len(connections) == 1


# The time that is left.


def test_an_upstream_is_told_the_time_that_is_left(pool: PoolProcess):
    gate = Gate()
    with scripted(InTurn(gate, echo)) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["first"])
        gate.await_arrivals(1)
        pool.do("submit", names=["late"], seconds=20, headers=[["X-Request-Timeout-Ms", "20000"], ["X-A", "b"]])
        pool.do("pass_time", seconds=0.3)
        gate.opening.set()

        assert ends(pool.do("results")) == [["ok"]] * 2
        _, headers, _ = a.requests[1]
        assert 0 < int(headers["X-Request-Timeout-Ms"]) <= 19_700
        assert headers["X-A"] == "b"
        assert "X-Request-Timeout-Ms" not in a.requests[0][1]


# Aborts.


class Aborts:
    """Streams without end, and notes what it is asked to abort, as SGLang would."""

    def __init__(self) -> None:
        self.stream = Streams()
        self.aborted: list[str] = []
        self.has_aborted = threading.Event()

    def __call__(self, handler: Handler) -> None:
        if handler.path == "/abort_request":
            self.aborted.append(json.loads(handler.body)["rid"])
            handler.answer(200, {})
            self.has_aborted.set()
        else:
            self.stream(handler)


@pytest.mark.parametrize(("owner", "abort"), [("sglang", "auto"), ("test", "sglang")])
@pytest.mark.parametrize("way", ["cancel", "remove", "deadline"])
def test_a_call_that_ends_early_is_aborted_by_the_id_that_its_upstream_was_given(
    pool: PoolProcess, owner: str, abort: str, way: str
):
    behaviour = Aborts()
    with scripted(behaviour) as a:
        a.owner = owner
        id, _ = pool.do("add", url=a.url, abort=abort)
        pool.do("submit", names=['{"model":"m"}'], path=CHAT, seconds=2.0 if way == "deadline" else None)
        pool.do("await_piece", name='{"model":"m"}')

        if way == "cancel":
            pool.do("cancel", name='{"model":"m"}')
        elif way == "remove":
            pool.do("remove", id=id, abort=True)

        assert behaviour.has_aborted.wait(15)
        assert behaviour.stream.is_closed.wait(15)
        sent = json.loads(a.requests[0][2])
        assert behaviour.aborted == [sent["rid"]]
        assert sent["model"] == "m"


@pytest.mark.parametrize(("owner", "abort"), [("vllm", "auto"), ("sglang", "none")])
def test_upstreams_without_an_abort_endpoint_get_bodies_as_they_were_sent_and_no_aborts(
    pool: PoolProcess, owner: str, abort: str
):
    behaviour = Aborts()
    with scripted(behaviour) as a:
        a.owner = owner
        pool.do("add", url=a.url, abort=abort)
        pool.do("submit", names=["{}"], path=CHAT)
        pool.do("await_piece", name="{}")

        pool.do("cancel", name="{}")

        assert behaviour.stream.is_closed.wait(15)
        pool.do("stop")
        pool.do("await_stop")
        assert bodies(a) == ["{}"]


def test_a_whole_answer_is_not_aborted(pool: PoolProcess):
    behaviour = Aborts()
    behaviour.stream.go_on.set()
    with scripted(behaviour) as a:
        a.owner = "sglang"
        pool.do("add", url=a.url)
        pool.do("submit", names=["{}"], path=CHAT)

        assert ends(pool.do("results")) == [["ok"]]
        pool.do("stop")
        pool.do("await_stop")
        assert len(a.requests) == 1


def test_an_abort_endpoint_that_does_not_answer_holds_up_a_removal_for_two_seconds_at_most(pool: PoolProcess):
    silence = threading.Event()
    stream = Streams()

    def behave(handler: Handler) -> None:
        if handler.path == "/abort_request":
            assert silence.wait(20)
        else:
            stream(handler)

    with scripted(behave) as a:
        id, _ = pool.do("add", url=a.url, abort="sglang")
        pool.do("submit", names=["{}"], path=CHAT)
        pool.do("await_piece", name="{}")

        pool.do("remove", id=id, abort=True)
        pool.do("await_state", id=id, state="gone")

        assert ends(pool.do("results")) == [["UpstreamRemoved"]]
        silence.set()
