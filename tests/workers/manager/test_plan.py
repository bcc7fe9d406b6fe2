"""What is started, drained and evicted next, given where the pools stand."""

from __future__ import annotations

from dataclasses import replace

from corosrv.workers.manager.plan import (
    Claim,
    DrainAction,
    GroupSnapshot,
    HostPlan,
    HostSnapshot,
    PlaceState,
    PoolSnapshot,
    WorkerSnapshot,
    plan,
)

READY, STARTING, DRAINING, STOPPING = (
    PlaceState.READY,
    PlaceState.STARTING,
    PlaceState.DRAINING,
    PlaceState.STOPPING,
)
GPU = Claim(gpus=1)
NOTHING = Claim()


def pool(
    name: str, target: int, *states: PlaceState, least: int = 0, idle_since: float | None = None, **more
) -> PoolSnapshot:
    workers = tuple(
        WorkerSnapshot(f"{name}/{n}", state, float(n), idle_since=idle_since) for n, state in enumerate(states)
    )
    return PoolSnapshot(name, least, 99, target, workers, **more)


def decide(
    *pools: PoolSnapshot, budget: Claim | None = None, elsewhere: Claim = NOTHING, now: float = 1000.0
) -> HostPlan:
    host = HostSnapshot(elsewhere=elsewhere) if budget is None else HostSnapshot(budget, elsewhere)
    return plan(pools, host, now)


def started(decided: HostPlan) -> list[str]:
    return [start.pool for start in decided.starts]


def drained(decided: HostPlan) -> list[str]:
    return [drain.worker for drain in decided.drains]


def outgoing(standing: PoolSnapshot, *ids: str) -> PoolSnapshot:
    return replace(
        standing, workers=tuple(replace(worker, is_outgoing=worker.id in ids) for worker in standing.workers)
    )


def test_a_pool_at_its_target_is_left_alone():
    decided = decide(pool("p", 2, READY, STARTING))

    assert (decided.starts, decided.drains, decided.next_at) == ((), (), 1001.0)


def test_what_is_lacking_is_started():
    assert started(decide(pool("p", 2, READY))) == ["p"]


def test_two_workers_start_at_a_time_on_one_host():
    assert started(decide(pool("p", 9))) == ["p", "p"]
    assert started(decide(pool("p", 9, STARTING), pool("q", 9))) == ["q"]
    assert started(decide(pool("p", 9, STARTING, STARTING), pool("q", 1))) == []


def test_a_pool_without_a_worker_comes_before_one_that_has_some():
    assert started(decide(pool("p", 9, READY), pool("q", 1))) == ["q", "p"]


def test_the_first_priority_comes_first():
    assert started(decide(pool("p", 9), pool("q", 9, READY, priority=4))) == ["q", "q"]


def test_a_pool_waits_after_a_crash_and_says_so():
    decided = decide(pool("p", 1, retry_at=1000.4, has_crashed=True, target_reason="why"))

    assert started(decided) == []
    assert decided.reasons["p"] == "why; the next start is in 0.4 s, because workers have crashed"
    assert decided.next_at == 1000.4


def test_a_looping_pool_is_named():
    decided = decide(pool("p", 1, retry_at=1030.0, has_crashed=True, is_crashlooping=True))

    assert decided.reasons["p"].startswith("crashlooping: ")


def test_a_pool_that_crashes_takes_no_turn_from_the_others():
    crashing = pool("p", 4, STARTING, has_crashed=True)

    assert started(decide(crashing, pool("q", 2))) == ["q", "q"]


def test_a_pool_that_has_too_many_drains_one_at_a_time():
    assert len(drained(decide(pool("p", 1, READY, READY, READY)))) == 1
    assert drained(decide(pool("p", 1, READY, READY, DRAINING))) == []


def test_a_worker_that_is_not_ready_yet_goes_first_and_then_the_one_with_the_fewest_calls():
    starting, busy, idle = (
        WorkerSnapshot("p/0", STARTING, 0.0),
        WorkerSnapshot("p/1", READY, 0.0, in_flight=3),
        WorkerSnapshot("p/2", READY, 0.0, in_flight=1),
    )
    some = pool("p", 1)

    assert drained(decide(replace(some, workers=(busy, idle, starting)))) == ["p/0"]
    assert drained(decide(replace(some, workers=(busy, idle)))) == ["p/2"]


def test_nothing_starts_over_the_budget():
    decided = decide(pool("p", 2, READY, claim=GPU), budget=Claim(1, 1e9))

    assert started(decided) == []
    assert decided.reasons["p"] == "a worker needs 1 GPU, and 0 GPU are free"


def test_workers_that_are_ending_still_hold_what_they_claim():
    assert started(decide(pool("p", 1, STOPPING, claim=GPU), budget=Claim(1, 1e9))) == []


def test_loaded_models_share_the_memory():
    some = pool("p", 1, claim=Claim(memory=6e8))

    assert started(decide(some, budget=Claim(0, 1e9), elsewhere=Claim(memory=4e8))) == ["p"]
    assert started(decide(some, budget=Claim(0, 1e9), elsewhere=Claim(memory=5e8))) == []


def test_what_the_host_can_never_give_is_named():
    decided = decide(pool("p", 1, claim=Claim(2, 1e6)), budget=Claim(1, 1e9))

    assert decided.reasons["p"] == "a worker needs 2 GPU and 1 MB, and the host may give 1 GPU and 1000 MB"


def test_an_idle_worker_of_a_lower_priority_makes_room():
    idle = pool("low", 1, READY, claim=GPU, priority=7, idle_since=900.0)

    decided = decide(idle, pool("high", 1, claim=GPU), budget=Claim(1, 1e9))

    assert decided.drains == (DrainAction("low", "low/0", "it makes room for the pool high", "high"),)
    assert started(decided) == []
    assert decided.reasons["high"] == "room is being made for 1 GPU"


def test_room_that_is_being_made_is_not_made_twice():
    low = pool("low", 0, DRAINING, READY, claim=GPU, priority=7, idle_since=900.0)

    assert drained(decide(replace(low, target=1), pool("high", 1, claim=GPU), budget=Claim(2, 1e9))) == []


def test_nobody_is_evicted_for_a_pool_of_the_same_priority():
    idle = pool("a", 1, READY, claim=GPU, idle_since=900.0)

    assert drained(decide(idle, pool("b", 1, claim=GPU), budget=Claim(1, 1e9))) == []


def test_nobody_is_evicted_who_was_not_idle_for_its_time():
    low = pool("low", 1, READY, claim=GPU, priority=7, idle_since=950.0)

    assert drained(decide(low, pool("high", 1, claim=GPU), budget=Claim(1, 1e9))) == []
    assert drained(decide(low, pool("high", 1, claim=GPU), budget=Claim(1, 1e9), now=1010.0)) == ["low/0"]


def test_nobody_is_evicted_from_a_pool_with_waiting_calls_or_below_its_least():
    low = pool("low", 1, READY, claim=GPU, priority=7, idle_since=900.0)
    high = pool("high", 1, claim=GPU)
    waiting = (GroupSnapshot("low", 1, depth=1),)

    assert drained(decide(replace(low, groups=waiting), high, budget=Claim(1, 1e9))) == []
    assert drained(decide(replace(low, least=1), high, budget=Claim(1, 1e9))) == []


def test_nobody_is_evicted_for_room_that_will_not_be_enough():
    low = pool("low", 1, READY, claim=GPU, priority=7, idle_since=900.0)

    assert drained(decide(low, pool("high", 1, claim=Claim(2)), budget=Claim(3, 1e9), elsewhere=Claim(2))) == []


def test_a_lower_pool_does_not_take_the_room_that_is_made_for_a_higher_one():
    low = pool("low", 0, DRAINING, claim=GPU, priority=9)
    high, middle = pool("high", 1, claim=Claim(2), priority=1), pool("middle", 1, claim=GPU)

    assert started(decide(low, high, middle, budget=Claim(2, 1e9))) == []


def test_a_replacement_is_started_before_the_old_worker_is_drained():
    assert started(decide(outgoing(pool("p", 1, READY), "p/0"))) == ["p"]
    assert drained(decide(outgoing(pool("p", 1, READY), "p/0"))) == []
    assert drained(decide(outgoing(pool("p", 1, READY, STARTING), "p/0"))) == []
    assert drained(decide(outgoing(pool("p", 1, READY, READY), "p/0"))) == ["p/0"]


def test_workers_are_replaced_one_after_the_other():
    rolling = outgoing(pool("p", 3, READY, READY, READY), "p/0", "p/1", "p/2")

    assert started(decide(rolling)) == ["p"]
    assert drained(decide(outgoing(pool("p", 3, READY, READY, READY, READY), "p/0", "p/1", "p/2"))) == ["p/0"]
    assert drained(decide(outgoing(pool("p", 3, DRAINING, READY, READY, READY), "p/1", "p/2"))) == []


def test_where_there_is_no_room_for_both_the_old_worker_goes_first():
    decided = decide(outgoing(pool("p", 1, READY, claim=GPU), "p/0"), budget=Claim(1, 1e9))

    assert drained(decided) == ["p/0"]
    assert started(decided) == []


def test_a_worker_of_an_empty_pool_is_replaced_by_nobody():
    decided = decide(outgoing(pool("p", 0, READY), "p/0"))

    assert (started(decided), drained(decided)) == ([], ["p/0"])
