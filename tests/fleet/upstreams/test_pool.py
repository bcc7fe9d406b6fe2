"""A pool of upstreams, in a process that gevent has patched, against real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fleet.upstreams.behaviours import Gate, InTurn, Streams, bodies, ends, one
from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.scripted_upstream import Handler, closes, echo, fails_with, scripted

# Permits and the queue.


def test_no_more_calls_are_in_flight_than_there_are_permits(pool: PoolProcess):
    gate = Gate()
    with scripted(gate) as a, scripted(gate) as b:
        pool.do("add", url=a.url, concurrency=2)
        pool.do("add", url=b.url, concurrency=3)

        pool.do("submit", names=[f"c{i}" for i in range(20)])
        gate.await_arrivals(5)
        pool.do("await_calls", waiting=15, running=5)
        gate.opening.set()
        results = pool.do("results")

        assert ends(results) == [["ok"]] * 20
        assert (a.most_running, b.most_running) == (2, 3)
        assert sorted(bodies(a) + bodies(b)) == sorted(f"c{i}" for i in range(20))


def test_calls_that_wait_start_on_an_upstream_that_is_added(pool: PoolProcess):
    busy = Gate()
    with scripted(busy) as a, scripted() as b:
        pool.do("add", url=a.url, concurrency=1)
        names = [f"c{i}" for i in range(5)]
        pool.do("submit", names=names)
        pool.do("await_calls", waiting=4, running=1)

        pool.do("add", url=b.url)
        results = pool.do("results", names=names[1:])
        busy.opening.set()

        assert ends(results) == [["ok"]] * 4
        assert sorted(bodies(b)) == names[1:]
        assert ends(pool.do("results")) == [["ok"]] * 5


def test_calls_that_go_on_from_what_an_upstream_keeps_wait_for_it_and_hold_up_no_others(pool: PoolProcess):
    gate = Gate()
    with scripted(gate) as keeping, scripted() as other:
        id, _ = pool.do("add", url=keeping.url, concurrency=1)
        pool.do("add", url=other.url, concurrency=1)
        names = [f"c{i}" for i in range(12)]

        pool.do("submit", names=names, keeper=id)
        pool.do("await_calls", waiting=11, running=1)
        pool.do("submit", names=["free"])
        assert ends(pool.do("results", names=["free"])) == [["ok"]]
        gate.opening.set()

        assert ends(pool.do("results")) == [["ok"]] * 13
        assert bodies(keeping) == names
        assert bodies(other) == ["free"]


def test_a_call_goes_anywhere_once_the_upstream_that_kept_what_it_goes_on_from_has_left(pool: PoolProcess):
    with scripted() as keeping, scripted() as other:
        id, _ = pool.do("add", url=keeping.url)
        pool.do("add", url=other.url)
        pool.do("remove", id=id)
        pool.do("await_state", id=id, state="gone")

        pool.do("submit", names=["left"], keeper=id)
        assert ends(pool.do("results")) == [["ok"]]
        pool.do("add", url=keeping.url)
        pool.do("submit", names=["back"], keeper=id)

        assert ends(pool.do("results")) == [["ok"]] * 2
        assert (bodies(keeping), bodies(other)) == (["back"], ["left"])


def test_the_same_url_twice_is_one_upstream_with_one_set_of_permits(pool: PoolProcess):
    with scripted() as a:
        first = pool.do("add", url=a.url, concurrency=2)
        second = pool.do("add", url=a.url + "/", concurrency=7)

    assert (first[1], second) == (True, [first[0], False])
    assert one(pool)["permits"] == [2, 2]


def test_a_url_that_comes_back_while_it_drains_is_a_new_upstream_with_counters_of_its_own(pool: PoolProcess):
    gate = Gate()
    with scripted(InTurn(echo, gate, echo)) as a:
        old, _ = pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c0"])
        pool.do("results")
        pool.do("submit", names=["c1"])
        pool.do("await_calls", running=1)
        pool.do("remove", id=old)

        new, is_new = pool.do("add", url=a.url, concurrency=3)
        pool.do("submit", names=["c2"])
        pool.do("results", names=["c2"])
        before, after = pool.do("upstreams")

        assert is_new
        assert new != old
        assert (before["state"], before["ok"], before["permits"]) == ("draining", 1, [1, 0])
        assert (after["state"], after["ok"], after["permits"]) == ("ready", 1, [3, 3])
        gate.opening.set()
        pool.do("await_state", id=old, state="gone")


def test_a_model_that_no_upstream_lists_is_not_found(pool: PoolProcess):
    with scripted(models=("a", "b")) as a:
        pool.do("add", url=a.url)

        with pytest.raises(RuntimeError, match="ModelNotFound"):
            pool.do("submit", names=["c"], model="x")


def test_models_that_an_upstream_lists_later_can_be_asked_for(pool: PoolProcess):
    with scripted(models=("a",)) as a:
        id, _ = pool.do("add", url=a.url)
        a.models = ("a", "b")
        a.health = 500
        pool.do("await_state", id=id, state="probing")
        a.health = 200
        pool.do("await_state", id=id, state="ready")

        pool.do("submit", names=["c"], model="b")

        assert ends(pool.do("results")) == [["ok"]]
        assert pool.do("upstreams")[0]["models"] == ["a", "b"]


def test_a_call_goes_to_an_upstream_that_has_its_model(pool: PoolProcess):
    with scripted(models=("a",)) as a, scripted(models=("b",)) as b:
        pool.do("add", url=a.url)
        pool.do("add", url=b.url)

        pool.do("submit", names=["for-b-1", "for-b-2"], model="b")
        pool.do("results")

        assert (bodies(a), sorted(bodies(b))) == ([], ["for-b-1", "for-b-2"])


# What is tried again.


def test_a_call_of_which_nothing_was_sent_goes_elsewhere(pool: PoolProcess):
    with scripted() as a, scripted() as b:
        pool.do("add", url=a.url)
        pool.do("add", url=b.url)
        a.stop_listening()
        pool.do("submit", names=[f"c{i}" for i in range(6)])

        assert ends(pool.do("results")) == [["ok"]] * 6
        assert sorted(bodies(b)) == [f"c{i}" for i in range(6)]


def test_a_call_that_is_lost_before_its_first_byte_is_tried_once_more(pool: PoolProcess):
    with scripted(closes) as a:
        pool.do("add", url=a.url)

        pool.do("submit", names=["c"])
        (result,) = pool.do("results")

        assert (result["ends"], result["status"]) == (["UpstreamLost"], None)
        assert bodies(a) == ["c", "c"]


def test_a_call_is_never_tried_again_after_its_first_byte(pool: PoolProcess):
    def breaks_off(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(b"first")
        closes(handler)

    with scripted(breaks_off) as a:
        pool.do("add", url=a.url)

        pool.do("submit", names=["c"])
        (result,) = pool.do("results")

        assert (result["ends"], result["status"], result["body"]) == (["UpstreamLost"], 200, "first")
        assert bodies(a) == ["c"]


# How many calls an upstream gets at once.


@pytest.mark.parametrize(
    ("path", "description", "room"),
    [
        ("/props", {"total_slots": 3}, [3, "upstream"]),
        ("/get_server_info", {"max_running_requests": 5}, [5, "upstream"]),
        (
            "/server_info?config_format=json",
            {"vllm_config": {"scheduler_config": {"max_num_seqs": 64}}},
            [64, "upstream"],
        ),
        ("/elsewhere", {}, [32, "default"]),
    ],
)
def test_an_upstream_gets_as_many_calls_as_it_says(pool: PoolProcess, path: str, description: Any, room: list[Any]):
    with scripted() as a:
        a.descriptions[path] = description

        pool.do("add", url=a.url, concurrency=None)

        assert (one(pool)["room"], one(pool)["permits"]) == (room, [room[0], room[0]])


def test_what_an_operator_says_of_an_upstream_holds(pool: PoolProcess):
    with scripted() as a:
        a.descriptions["/props"] = {"total_slots": 3}

        pool.do("add", url=a.url, concurrency=7)

        assert one(pool)["room"] == [7, "settings"]


def test_an_upstream_that_comes_back_with_other_slots_gets_other_calls(pool: PoolProcess):
    gate = Gate()
    with scripted(gate) as a:
        a.descriptions["/props"] = {"total_slots": 3}
        id, _ = pool.do("add", url=a.url, concurrency=None)
        pool.do("submit", names=["c1", "c2", "c3", "c4"])
        pool.do("await_calls", waiting=1, running=3)
        for slots, permits in ((1, 3), (2, 3), (5, 5)):
            a.descriptions["/props"] = {"total_slots": slots}
            a.health = 500
            pool.do("await_state", id=id, state="probing")
            a.health = 200
            pool.do("await_state", id=id, state="ready")
            assert one(pool)["room"] == [slots, "upstream"]
            assert one(pool)["permits"][0] >= permits

        pool.do("await_calls", waiting=0, running=4)
        gate.opening.set()

        assert ends(pool.do("results")) == [["ok"]] * 4
        assert one(pool)["permits"] == [5, 5]


# Memory.


def test_a_request_is_let_go_of_with_its_call(pool: PoolProcess):
    with scripted(InTurn(closes, closes, echo)) as a:
        pool.do("add", url=a.url)
        pool.do("collect_garbage", is_on=False)
        for name in ("lost", "answered"):
            pool.do("submit", names=[name])
            pool.do("results", names=[name])
        pool.do("await_calls")

        pool.do("await_no_request")  # or large bodies stay until a collection of garbage

        pool.do("collect_garbage", is_on=True)


# Clients.


def test_a_cancel_reaches_the_upstream_and_frees_the_permit(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c"])
        pool.do("await_piece", name="c")

        pool.do("cancel", name="c")

        assert stream.is_closed.wait(15)
        pool.do("await_calls")
        assert (one(pool)["permits"], one(pool)["aborted"]) == ([1, 1], 1)


def test_a_queued_call_whose_client_left_never_reaches_an_upstream(pool: PoolProcess):
    gate = Gate()
    with scripted(gate) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c0", "c1", "c2"])
        pool.do("await_calls", waiting=2, running=1)

        pool.do("cancel", name="c1")
        gate.opening.set()
        pool.do("results")

        assert bodies(a) == ["c0", "c2"]


def test_a_call_ends_at_its_deadline_and_the_upstream_sees_it(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        pool.do("add", url=a.url)
        pool.do("submit", names=["c"], seconds=1.5)

        assert ends(pool.do("results")) == [["DeadlinePassed"]]
        assert stream.is_closed.wait(15)


def test_a_client_that_does_not_read_stops_the_upstreams_writes(pool: PoolProcess):
    n_written = 0
    stalls = threading.Event()

    def pours(handler: Handler) -> None:
        nonlocal n_written
        handler.begin_stream()
        handler.connection.settimeout(0.5)
        try:
            for _ in range(1000):
                handler.chunk(b"x" * 65_536)
                n_written += 65_536
        except TimeoutError:
            stalls.set()
        handler.close_connection = True

    with scripted(pours) as a:
        pool.do("add", url=a.url)
        pool.do("submit", names=["c"], reads=False)

        assert stalls.wait(15)
        assert n_written < 16 << 20
        pool.do("cancel", name="c")


# Everything at once.


def fails_somehow(seed: int) -> Callable[[Handler], None]:
    """Answers by turns well and in every way that an upstream may fail."""

    def half(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        closes(handler)

    def silent(handler: Handler) -> None:
        handler.connection.settimeout(5)
        handler.connection.recv(1)
        handler.close_connection = True

    ways = [echo, fails_with(500), echo, closes, half, echo, fails_with(429, Retry_After="0"), fails_with(503), silent]
    turns = iter(range(seed, 1_000_000))
    lock = threading.Lock()

    def behave(handler: Handler) -> None:
        with lock:
            turn = next(turns)
        ways[turn * 7919 % len(ways)](handler)

    return behave


def test_calls_over_upstreams_that_fail_in_every_way_end_once_each(pool: PoolProcess):
    pool.do("close")
    pool.do("new", first_byte=0.5, idle=0.5, patience=20.0)
    names = [f"c{i}" for i in range(300)]
    with (
        scripted(fails_somehow(0)) as a,
        scripted(fails_somehow(3)) as b,
        scripted(fails_somehow(5)) as c,
        scripted() as d,
    ):
        for upstream in (a, b, c, d):
            pool.do("add", url=upstream.url, concurrency=6, up=False)
        ids = [upstream["id"] for upstream in pool.do("upstreams")]
        pool.do("await_state", id=ids[3], state="ready")

        pool.do("submit", names=names[:100])
        pool.do("remove", id=ids[0], abort=True)
        pool.do("submit", names=names[100:200])
        pool.do("add", url=a.url, concurrency=6, up=False)
        pool.do("remove", id=ids[1], timeout=0.2)
        pool.do("submit", names=names[200:])
        results = pool.do("results")
        pool.do("await_calls")

        assert [len(result["ends"]) for result in results] == [1] * 300
        assert sum(result["ends"] == ["ok"] for result in results) > 100
        assert all(upstream["permits"] == [6, 6] for upstream in pool.do("upstreams"))
