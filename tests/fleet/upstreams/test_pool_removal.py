"""Upstreams that are removed from a pool, and the pool's own end, with calls that are under way."""

from __future__ import annotations

import pytest

from tests.fleet.upstreams.behaviours import Streams, begin_call, bodies, ends, one
from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.receiver import closed_url
from tests.support.scripted_upstream import scripted

# Removal.


def test_a_drain_lets_calls_end(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        id = begin_call(pool, a.url)

        pool.do("remove", id=id)
        stream.go_on.set()
        pool.do("await_state", id=id, state="gone")

        (result,) = pool.do("results")
        assert (result["ends"], result["body"]) == (["ok"], "first last")


def test_a_drain_ends_the_calls_that_take_longer(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        id = begin_call(pool, a.url)

        pool.do("remove", id=id, timeout=0.1)
        pool.do("await_state", id=id, state="gone")

        assert ends(pool.do("results")) == [["UpstreamRemoved"]]
        assert stream.is_closed.wait(15)


def test_an_abort_ends_calls_at_once_and_reaches_the_upstream(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        id = begin_call(pool, a.url)

        pool.do("remove", id=id, abort=True)

        assert ends(pool.do("results")) == [["UpstreamRemoved"]]
        assert stream.is_closed.wait(15)


def test_an_abort_ends_what_a_drain_waits_for(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        id = begin_call(pool, a.url)
        pool.do("remove", id=id)
        assert one(pool)["state"] == "draining"

        pool.do("remove", id=id, abort=True)
        pool.do("await_state", id=id, state="gone")

        assert stream.is_closed.wait(15)


def test_a_second_drain_changes_nothing_of_the_first(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        id = begin_call(pool, a.url)

        pool.do("remove", id=id)
        pool.do("remove", id=id, timeout=0.0)
        assert one(pool)["state"] == "draining"
        stream.go_on.set()

        assert ends(pool.do("results")) == [["ok"]]
        pool.do("await_state", id=id, state="gone")


def test_an_upstream_that_drains_gets_no_calls(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a, scripted() as b:
        id, _ = pool.do("add", url=a.url)
        pool.do("submit", names=["c0"])
        pool.do("await_piece", name="c0")
        pool.do("add", url=b.url)
        pool.do("remove", id=id)

        pool.do("submit", names=["c1", "c2", "c3"])

        assert ends(pool.do("results", names=["c1", "c2", "c3"])) == [["ok"]] * 3
        assert bodies(a) == ["c0"]
        stream.go_on.set()


# The end.


def test_a_stop_lets_calls_end_and_refuses_new_ones(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c0", "c1"])
        pool.do("await_piece", name="c0")

        pool.do("stop")
        with pytest.raises(RuntimeError, match="ShuttingDown"):
            pool.do("submit", names=["late"])
        with pytest.raises(RuntimeError, match="ShuttingDown"):
            pool.do("add", url=closed_url(), up=False)
        stream.go_on.set()
        pool.do("await_stop")

        assert ends(pool.do("results", names=["c0", "c1"])) == [["ok"], ["ok"]]


def test_a_second_stop_ends_what_waits_and_what_runs(pool: PoolProcess):
    stream = Streams()
    with scripted(stream) as a:
        pool.do("add", url=a.url, concurrency=1)
        pool.do("submit", names=["c0", "c1"])
        pool.do("await_piece", name="c0")

        pool.do("stop")
        pool.do("stop")
        pool.do("await_stop")

        assert ends(pool.do("results", names=["c0", "c1"])) == [["WorkerLost"], ["ShuttingDown"]]
        assert stream.is_closed.wait(15)
        assert bodies(a) == ["c0"]
