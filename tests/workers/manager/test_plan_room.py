"""Which workers start, go and make room where several pools want what the host has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corosrv.workers.manager.plan import Claim
from tests.workers.manager.test_plan import (
    DRAINING,
    GPU,
    READY,
    STARTING,
    STOPPING,
    decide,
    drained,
    outgoing,
    pool,
    started,
)


def test_the_starts_of_one_look_share_the_budget():
    decided = decide(pool("p", 2, claim=GPU), budget=Claim(1, 1e9))

    assert started(decided) == ["p"]
    assert "0 GPU are free" in decided.reasons["p"]


def test_a_pool_that_has_crashed_starts_one_at_a_time():
    assert started(decide(pool("p", 3, has_crashed=True))) == ["p"]
    assert started(decide(pool("p", 3, STARTING, has_crashed=True))) == []


def test_a_pool_that_has_crashed_waits_for_no_others_starts():
    assert started(decide(pool("p", 3, STARTING, STARTING), pool("bad", 1, has_crashed=True))) == ["bad"]


@pytest.mark.parametrize(
    ("one", "other", "goes"), [((7, 800.0), (9, 900.0), "other/0"), ((9, 900.0), (9, 800.0), "other/0")]
)
def test_the_lowest_priority_makes_room_and_of_one_who_was_idle_longest(one, other, goes: str):
    pools = [
        pool(name, 1, READY, claim=GPU, priority=priority, idle_since=idle_since)
        for name, (priority, idle_since) in (("one", one), ("other", other))
    ]

    assert drained(decide(*pools, pool("high", 1, claim=GPU), budget=Claim(2, 1e9))) == [goes]


def test_a_worker_that_goes_anyway_is_room_enough():
    low = pool("low", 0, READY, READY, claim=GPU, priority=7, idle_since=900.0)

    assert len(drained(decide(low, pool("high", 1, claim=GPU), budget=Claim(2, 1e9)))) == 1


def test_no_worker_is_drained_twice():
    low = pool("low", 0, READY, READY, claim=GPU, priority=7)
    low = replace(low, workers=tuple(replace(worker, idle_since=900.0 - worker.since) for worker in low.workers))

    assert sorted(drained(decide(low, pool("high", 1, claim=Claim(2)), budget=Claim(2, 1e9)))) == ["low/0", "low/1"]


@pytest.mark.parametrize("low", [
    pool("low", 1, READY, claim=GPU, priority=7),
    pool("low", 1, STARTING, claim=GPU, priority=7, idle_since=900.0),
])  # fmt: skip
def test_nobody_is_evicted_who_works_or_starts(low):
    assert drained(decide(low, pool("high", 1, claim=GPU), budget=Claim(1, 1e9))) == []


def test_a_worker_that_has_gone_already_is_not_the_one_that_a_pool_has_too_many():
    assert drained(decide(pool("p", 1, STOPPING, READY, READY))) == ["p/2"]


def test_without_room_for_replacements_workers_go_one_after_the_other():
    rolling = outgoing(pool("p", 2, DRAINING, READY, claim=GPU), "p/1")

    assert drained(decide(rolling, budget=Claim(2, 1e9))) == []


def test_the_next_look_is_when_a_pool_may_start_again_that_lacks_a_worker():
    assert decide(pool("p", 1, retry_at=1000.25)).next_at == 1000.25
    assert decide(pool("p", 1, READY, retry_at=1000.25)).next_at == 1001
    assert decide(pool("p", 2, READY, retry_at=999.0)).next_at == 1001
