"""Which upstreams of a pool get calls: their probes, their faults and their breakers, against real servers."""

from __future__ import annotations

import threading

import pytest

from tests.fleet.upstreams.behaviours import Gate, InTurn, Streams, begin_call, bodies, ends, one
from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.scripted_upstream import Handler, closes, crashes, echo, fails_with, scripted


def test_an_upstream_falls_by_its_probes_and_rises_again(pool: PoolProcess):
    with scripted() as a:
        id, _ = pool.do("add", url=a.url)

        a.health = 500
        pool.do("await_state", id=id, state="probing")
        assert "500" in one(pool)["reason"]
        pool.do("submit", names=["c"])
        pool.do("await_calls", waiting=1)
        a.health = 200

        assert ends(pool.do("results")) == [["ok"]]
        assert one(pool)["state"] == "ready"


@pytest.mark.parametrize(("status", "words"), [(302, "a redirect, which is not followed"), (503, "503")])
def test_an_upstream_whose_probes_are_answered_otherwise_gets_no_calls(pool: PoolProcess, status: int, words: str):
    with scripted() as a:
        a.health = status
        pool.do("add", url=a.url, up=False)
        pool.do("await_reason", words=words)
        pool.do("submit", names=["c"])
        pool.do("await_calls", waiting=1)
        assert (one(pool)["state"], a.requests) == ("probing", [])

        a.health = 200

        assert ends(pool.do("results")) == [["ok"]]


def test_an_upstream_without_a_health_endpoint_is_probed_by_the_list_of_its_models(pool: PoolProcess):
    with scripted() as a:
        a.health, a.listing = 404, 500
        id, _ = pool.do("add", url=a.url, up=False)
        pool.do("await_reason", words="500 to /v1/models")

        a.listing = 200

        pool.do("await_state", id=id, state="ready")


def test_a_call_for_an_upstream_that_stays_down_is_refused_in_time(pool: PoolProcess):
    gate = Gate()
    pool.do("close")
    pool.do("new", patience=0.5)
    with scripted(gate) as a:
        id, _ = pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["runs", "waits"])
        pool.do("await_calls", waiting=1, running=1)

        a.health = 500
        pool.do("await_state", id=id, state="probing")
        gate.opening.set()
        runs, waits = pool.do("results")

        assert runs["ends"] == ["ok"]
        assert waits["ends"] in (["Unavailable"], ["NoWorker"]), waits  # its patience ends now or at the next look
        assert bodies(a) == ["runs"]
        with pytest.raises(RuntimeError, match="no upstream is ready"):
            pool.do("submit", names=["later"])
        a.health = 200
        pool.do("await_state", id=id, state="ready")
        pool.do("submit", names=["again"])
        assert ends(pool.do("results", names=["again"])) == [["ok"]]


def test_a_call_waits_for_the_upstream_that_keeps_what_it_goes_on_from_as_long_as_that_may_come_back(pool: PoolProcess):
    pool.do("close")
    pool.do("new", patience=0.5)
    with scripted() as keeping, scripted() as other:
        id, _ = pool.do("add", url=keeping.url)
        pool.do("add", url=other.url)
        keeping.health = 500
        pool.do("await_state", id=id, state="probing")

        pool.do("submit", names=["c"], keeper=id)
        (waited,) = pool.do("results")
        keeping.health = 200
        pool.do("await_state", id=id, state="ready")
        pool.do("submit", names=["again"], keeper=id)

        assert waited["ends"] == ["NoWorker"]
        assert waited["error"] == [503, 2]
        assert "the only worker that may run this call, as it keeps what that goes on from" in waited["words"]
        assert ends(pool.do("results", names=["again"])) == [["ok"]]
        assert (bodies(keeping), bodies(other)) == (["again"], [])


def test_five_faults_open_the_breaker_and_one_trial_passes_and_two_close_it(pool: PoolProcess):
    trial = Gate()
    behaviour = InTurn(*[crashes] * 5, trial)
    with scripted(behaviour) as a:
        pool.do("add", url=a.url, concurrency=4)
        for i in range(5):
            pool.do("submit", names=[f"bad{i}"])
            (result,) = pool.do("results", names=[f"bad{i}"])
            assert (result["status"], result["ends"]) == (500, ["ok"])
        assert one(pool)["state"] == "open"
        assert "answered 500" in one(pool)["reason"]

        pool.do("submit", names=["t1", "t2", "t3", "t4"])
        pool.do("await_calls", waiting=3, running=1)
        assert a.n_running <= 1
        trial.opening.set()
        results = pool.do("results", names=["t1", "t2", "t3", "t4"])

        assert ends(results) == [["ok"]] * 4
        assert one(pool)["state"] == "ready"
        assert one(pool)["failed"] == {"answered_5xx": 5}


@pytest.mark.parametrize("status", [422, 501])
def test_a_refusal_by_an_upstream_is_no_fault(pool: PoolProcess, status: int):
    with scripted(fails_with(status)) as a:
        pool.do("add", url=a.url)
        pool.do("submit", names=[f"c{i}" for i in range(12)])
        results = pool.do("results")

    assert {result["status"] for result in results} == {status}
    assert one(pool)["state"] == "ready"


def test_a_busy_upstream_is_paused_without_a_fault_and_its_call_runs_elsewhere(pool: PoolProcess):
    with scripted(fails_with(429, Retry_After="30")) as a, scripted() as b:
        busy, _ = pool.do("add", url=a.url)
        pool.do("add", url=b.url)

        for i in range(4):
            pool.do("submit", names=[f"c{i}"])
            pool.do("results")

        assert ends(pool.do("results")) == [["ok"]] * 4
        assert len(a.requests) == 1
        assert sorted(bodies(b)) == [f"c{i}" for i in range(4)]
        first = next(upstream for upstream in pool.do("upstreams") if upstream["id"] == busy)
        assert (first["state"], first["reason"]) == ("open", "it has asked for a pause")


def test_a_call_waits_for_the_only_upstream_while_that_is_busy(pool: PoolProcess):
    with scripted(InTurn(fails_with(429, Retry_After="1"), echo)) as a:
        pool.do("add", url=a.url)

        pool.do("submit", names=["c"])

        assert ends(pool.do("results")) == [["ok"]]
        assert bodies(a) == ["c", "c"]


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("is_elastic", [False, True])
def test_calls_that_would_wait_for_a_long_pause_are_refused_at_once(pool: PoolProcess, status: int, is_elastic: bool):
    gate = Gate(fails_with(status, Retry_After="300"))
    pool.do("close")
    pool.do("new", is_elastic=is_elastic, probes_each=600.0, probes_soonest=600.0)
    with scripted(gate) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["runs", "waits"])
        pool.do("await_calls", waiting=1, running=1)

        gate.opening.set()
        results = pool.do("results")

        assert [result["error"] for result in results] == [[503, 300]] * 2
        assert bodies(a) == ["runs"]
        with pytest.raises(RuntimeError, match="NoWorker"):
            pool.do("submit", names=["later"])


def test_a_long_pause_of_one_upstream_is_no_reason_to_refuse_what_another_takes(pool: PoolProcess):
    gate = Gate()
    with scripted(fails_with(503, Retry_After="300")) as a, scripted(gate) as b:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c1"])
        pool.do("results")
        pool.do("add", url=b.url, concurrency=1)
        pool.do("submit", names=["c2", "c3"])
        pool.do("await_calls", waiting=1, running=1)

        gate.opening.set()

        assert ends(pool.do("results", names=["c2", "c3"])) == [["ok"]] * 2


@pytest.mark.parametrize("fault", ["no connection", "reset", "stall", "502", "garbage"])
def test_each_fault_of_an_upstream_counts_for_its_breaker(pool: PoolProcess, fault: str):
    def stalls(handler: Handler) -> None:
        handler.connection.settimeout(15)
        handler.connection.recv(1)
        handler.close_connection = True

    def babbles(handler: Handler) -> None:
        handler.wfile.write(b"hello\r\n\r\n")
        handler.close_connection = True

    pool.do("close")
    pool.do("new", first_byte=0.3, probes_each=600.0, probes_soonest=600.0)
    ways = {"reset": closes, "stall": stalls, "502": fails_with(502), "garbage": babbles}
    with scripted(ways.get(fault, echo)) as a:
        pool.do("add", url=a.url)
        if fault == "no connection":
            a.stop_listening()

        names = [f"c{i}" for i in range(5)]
        pool.do("submit", names=names, seconds=20)
        pool.do("await_reason", words="its last calls failed")
        for name in names:
            pool.do("cancel", name=name)


# One that is gone with its machine: its connections stay open, and nobody answers.


@pytest.fixture
def quick_pool(pool: PoolProcess) -> PoolProcess:
    pool.do("close")
    pool.do("new", probe_limit=0.3, first_byte=60.0, idle=60.0)
    return pool


def test_a_call_without_an_answer_goes_elsewhere_once_its_upstream_answers_no_probe(quick_pool: PoolProcess):
    gone = Gate()
    with scripted(gone) as a, scripted() as b:
        id, _ = quick_pool.do("add", url=a.url)
        quick_pool.do("submit", names=["c"])
        quick_pool.do("await_calls", running=1)
        quick_pool.do("add", url=b.url)

        a.is_silent = True

        assert ends(quick_pool.do("results")) == [["ok"]]
        assert bodies(b) == ["c"]
        quick_pool.do("await_state", id=id, state="probing")
        gone.opening.set()


def test_a_stream_that_stalls_ends_once_its_upstream_answers_no_probe(quick_pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        begin_call(quick_pool, a.url)

        a.is_silent = True
        (result,) = quick_pool.do("results")

        assert (result["ends"], result["body"]) == (["UpstreamLost"], "first")
        assert "fallen silent" in result["words"]
        assert stream.is_closed.wait(15)


def test_a_stream_that_goes_on_is_not_ended_whatever_probes_say(quick_pool: PoolProcess):
    is_enough = threading.Event()

    def goes_on(handler: Handler) -> None:
        handler.begin_stream()
        while not is_enough.wait(0.05):
            handler.chunk(b"-")
        handler.end_stream()

    with scripted(goes_on) as a:
        id = begin_call(quick_pool, a.url)
        a.is_silent = True
        quick_pool.do("await_state", id=id, state="probing")
        quick_pool.do("await_more_probes", n=6)
        is_enough.set()

        assert ends(quick_pool.do("results")) == [["ok"]]


def test_a_slow_call_of_an_upstream_that_answers_probes_badly_goes_on(pool: PoolProcess):
    slow = Gate()
    with scripted(slow) as a:
        id, _ = pool.do("add", url=a.url)
        pool.do("submit", names=["c"])
        pool.do("await_calls", running=1)

        a.health = 503  # as one that drains
        pool.do("await_state", id=id, state="probing")
        pool.do("await_more_probes", n=6)
        slow.opening.set()

        assert ends(pool.do("results")) == [["ok"]]
        assert bodies(a) == ["c"]
