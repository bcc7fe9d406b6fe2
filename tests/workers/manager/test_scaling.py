"""How many workers a pool should have, given its queues at each tick."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corosrv.workers.manager.plan import GroupSnapshot, PlaceState, PoolSnapshot, WorkerSnapshot
from corosrv.workers.manager.scaling import Scaler

READY, STARTING = PlaceState.READY, PlaceState.STARTING


def pool(*states: PlaceState, least: int = 1, most: int = 8, cold_start: float = 0.0, **group) -> PoolSnapshot:
    """A pool of one group, whose workers have one slot each. Its calls take a second and may wait for five."""
    workers = tuple(WorkerSnapshot(f"p/{n}", state, 0.0) for n, state in enumerate(states))
    asked = GroupSnapshot("add", **{"slots": 1, "service": 1.0, "slo": 10.0} | group)
    return PoolSnapshot("p", least, most, len(states), workers, (asked,), cold_start=cold_start)


def with_oldest(standing: PoolSnapshot, oldest: float) -> PoolSnapshot:
    return replace(standing, groups=(replace(standing.groups[0], oldest=oldest),))


def decide(scaler: Scaler, standing: PoolSnapshot, begin: float = 100.0, ticks: int = 1) -> int:
    for n in range(ticks):
        decided = scaler.decide(standing, begin + n)
    return decided.target


def test_a_forecast_over_half_of_the_time_counts_on_its_second_tick():
    scaler, pressed = Scaler(1), pool(READY, depth=12)

    assert decide(scaler, pressed) == 1
    assert decide(scaler, pressed, 101.0) == 3  # ceil(12 s / 5 s)


def test_a_forecast_that_was_good_in_between_begins_anew():
    scaler, pressed = Scaler(1), pool(READY, depth=12)

    decide(scaler, pressed)
    decide(scaler, pool(READY, depth=2), 101.0)

    assert decide(scaler, pressed, 102.0) == 1


def test_a_call_that_has_waited_half_of_its_time_counts_at_once():
    assert decide(Scaler(1), pool(READY, depth=12, oldest=5.1)) == 3


def test_a_call_that_waits_against_the_forecast_gets_one_more_worker_and_time_to_see():
    scaler, stuck, more = Scaler(2), pool(READY, READY, depth=1), pool(READY, READY, READY, depth=1)
    decide(scaler, stuck, 100.0)

    assert decide(scaler, with_oldest(stuck, 5.1), 105.1) == 3
    assert decide(scaler, with_oldest(more, 9.0), 109.0) == 3
    assert decide(scaler, with_oldest(more, 14.0), 114.0) == 3
    assert decide(scaler, with_oldest(more, 14.1), 114.1) == 4


def test_a_wait_from_before_the_first_worker_was_ready_says_nothing_about_the_forecast():
    assert decide(Scaler(1), pool(READY, depth=1, oldest=90.0)) == 1


def test_workers_on_their_way_count():
    assert decide(Scaler(3), pool(READY, STARTING, STARTING, depth=12), ticks=5) == 3


def test_slots_count_and_not_workers():
    assert decide(Scaler(1), pool(READY, depth=80, slots=4), ticks=2) == 4  # 80 s / 5 s, four at a time


def test_a_pool_never_wants_more_than_it_may_have():
    decided = Scaler(1).decide(pool(READY, depth=1000, oldest=6.0, most=3), 100.0)

    assert decided.target == 3
    assert decided.reason == "calls of add would wait 1000.0 s, and should wait 5.0 s at most; it may have 3"


def test_a_backlog_that_ends_before_a_new_worker_is_there_starts_none():
    assert decide(Scaler(1), pool(READY, depth=12, cold_start=13.0), ticks=9) == 1
    assert decide(Scaler(1), pool(READY, depth=12, cold_start=11.0), ticks=9) == 3


def test_a_forecast_is_not_believed_against_a_call_that_has_waited_longer():
    scaler, slow = Scaler(1), pool(READY, depth=1, cold_start=13.0)
    decide(scaler, slow, 100.0)

    assert decide(scaler, with_oldest(slow, 12.0), 112.0) == 1
    assert decide(scaler, with_oldest(slow, 14.0), 114.0) == 2


def test_slow_starts_are_no_excuse_while_nobody_is_ready():
    assert decide(Scaler(1), pool(STARTING, depth=12, cold_start=100.0), ticks=2) == 3


def test_the_first_call_of_an_empty_pool_starts_a_worker_at_once():
    assert decide(Scaler(0), pool(least=0)) == 0
    assert decide(Scaler(0), pool(least=0, depth=1, service=0.0)) == 1


def test_the_group_that_needs_most_decides():
    one = pool(READY, depth=12)
    other = GroupSnapshot("embed", slots=1, depth=30, service=1.0, slo=10.0)

    assert decide(Scaler(1), replace(one, groups=(*one.groups, other)), ticks=2) == 6


def quiet(n: int, **group) -> PoolSnapshot:
    return pool(*[READY] * n, **group)


@pytest.mark.parametrize(("hold", "cold_start"), [(60, 0.0), (60, 20.0), (90, 30.0)])
def test_a_worker_goes_after_a_minute_or_three_starts_of_little_to_do(hold: int, cold_start: float):
    scaler = Scaler(4)

    assert decide(scaler, quiet(4, in_use=1, cold_start=cold_start), 0.0, hold - 1) == 4
    assert decide(scaler, quiet(4, in_use=1, cold_start=cold_start), hold - 1.0, 15) == 3


def test_nobody_goes_where_the_rest_would_be_busy():
    assert decide(Scaler(2), pool(READY, READY, slots=10, in_use=7, least=0), 0.0, 200) == 2  # 35 %, and 70 % of one
    assert decide(Scaler(2), pool(READY, READY, slots=10, in_use=5, least=0), 0.0, 200) == 1


def test_short_calls_that_no_look_sees_keep_workers():
    scaler = Scaler(2)

    for n in range(200):
        decided = scaler.decide(quiet(2, in_use=0, work_done=0.7 * n), float(n))

    assert decided.target == 2


def test_nobody_goes_while_somebody_starts():
    assert decide(Scaler(3), pool(READY, READY, STARTING), 0.0, 200) == 3


def test_nobody_goes_soon_after_a_start():
    scaler = Scaler(4)
    decide(scaler, quiet(4), 0.0, 59)

    scaler.note_start(50.0)

    assert decide(scaler, quiet(4), 59.0, 50) == 4
    assert decide(scaler, quiet(4), 109.0, 5) == 3


def test_the_last_worker_goes_only_if_nothing_was_asked_of_it():
    assert decide(Scaler(1), quiet(1, least=0, work_done=0.0), 0.0, 90) == 0
    scaler = Scaler(1)
    for n in range(90):
        decided = scaler.decide(quiet(1, least=0, work_done=0.001 * n), float(n))

    assert decided.target == 1


def test_nobody_goes_below_the_least():
    assert decide(Scaler(2), quiet(2, least=2), 0.0, 500) == 2


def run(scaler: Scaler, standing: PoolSnapshot, begin: float, end: float, load: float = 0.0) -> float:
    """Ticks until the target changes, under a load of so many slots; returns the time then, or the end."""
    target, now = scaler.decided.target, begin
    while now < end and scaler.decided.target == target:
        asked = replace(standing.groups[0], work_done=load * now)
        scaler.decide(replace(standing, groups=(asked,)), now)
        now += 1.0
    return now


def test_after_a_stop_a_forecast_starts_nobody_for_five_seconds():
    scaler = Scaler(2)
    stopped_at = run(scaler, quiet(2), 0.0, 100.0) - 1

    restarted_at = run(scaler, pool(READY, depth=12), stopped_at + 1, 200.0) - 1

    assert restarted_at - stopped_at == 5


def test_after_a_stop_a_call_that_waits_too_long_starts_one_at_once():
    scaler = Scaler(2)
    stopped_at = run(scaler, quiet(2), 0.0, 100.0) - 1

    assert decide(scaler, pool(READY, depth=12, oldest=5.1), stopped_at + 1) == 3


def test_a_size_that_was_too_small_is_not_tried_again_for_the_same_load():
    scaler = Scaler(1)
    run(scaler, pool(READY, depth=12, in_use=1), 0.0, 2.0, load=0.55)
    run(scaler, quiet(3), 2.0, 80.0, load=0.55)
    assert scaler.decided.target == 2

    run(scaler, quiet(2), 80.0, 1000.0, load=0.55)

    assert scaler.decided.target == 2


def test_a_size_that_was_too_small_for_another_load_is_tried_again():
    scaler = Scaler(2)

    run(scaler, quiet(2), 0.0, 1000.0, load=0.55)

    assert scaler.decided.target == 1


def test_a_size_that_was_too_small_is_tried_again_for_half_of_the_load():
    scaler = Scaler(1)
    decide(scaler, pool(READY, depth=12, in_use=1), 0.0, 2)
    decide(scaler, quiet(3), 2.0, 70)

    assert decide(scaler, quiet(2, in_use=0), 72.0, 10) == 1


def test_an_operator_moves_the_target_at_once():
    assert decide(Scaler(1), pool(READY, least=3)) == 3
    assert decide(Scaler(5), quiet(5, least=0, most=2)) == 2


def test_a_size_that_proved_too_small_again_is_tried_after_twice_as_long():
    scaler = Scaler(1)
    decide(scaler, pool(READY, depth=12, in_use=1), 0.0, 2)
    decide(scaler, quiet(3), 2.0, 70)
    assert decide(scaler, quiet(2, in_use=0), 72.0, 10) == 1

    decide(scaler, pool(READY, depth=12, in_use=1), 90.0, 2)
    decide(scaler, quiet(3, in_use=3), 92.0, 100)
    assert decide(scaler, quiet(3, in_use=0), 192.0, 62) == 2

    assert decide(scaler, quiet(2, in_use=0), 254.0, 10) == 2
    assert decide(scaler, quiet(2, in_use=0), 264.0, 60) == 1


def test_a_worker_that_makes_room_is_one_fewer_to_have():
    scaler = Scaler(1)

    for target in (0, 0):
        scaler.note_eviction("high")
        assert scaler.decided.target == target
    assert scaler.decided.reason == "a worker made room for the pool high"


def test_nobody_goes_while_calls_wait():
    assert decide(Scaler(2), quiet(2, in_use=0, depth=1, service=0.001), ticks=200) == 2


@pytest.mark.parametrize(("most", "words"), [(8, "5.0 s at most"), (3, "5.0 s at most"), (2, "; it may have 2")])
def test_the_limit_is_named_only_where_it_is_one(most: int, words: str):
    scaler = Scaler(1)

    decide(scaler, pool(READY, depth=12, most=most), ticks=2)

    assert scaler.decided.reason.endswith(words)


def test_a_pool_at_its_least_stays_there_at_every_tick():
    scaler = Scaler(2)

    assert {decide(scaler, quiet(2, least=2, in_use=0), float(now)) for now in range(300)} == {2}
