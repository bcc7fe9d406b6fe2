"""Pools of workers over simulated hours: they come to rest, follow bursts, and lose no call."""

from __future__ import annotations

import itertools
import random

import pytest

from corosrv.workers.manager.plan import Claim
from corosrv.workers.manager.pool_memory import PoolTerms
from tests.workers.manager.simulation import SimPool, Simulation, at_random, evenly, together

HOUR = 3600.0


def terms(name: str = "p", least: int = 1, most: int = 8, **more) -> PoolTerms:
    return PoolTerms(name, least, most, **more)


def size_at(simulation: Simulation, name: str, time: float) -> int:
    return sum(step for when, pool, step in simulation.changes if pool == name and when <= time)


@pytest.mark.parametrize("seed", range(30))
def test_constant_load_changes_nothing_after_two_minutes(seed: int):
    rng = random.Random(seed)
    rate, seconds, start_time = 10 ** rng.uniform(-1.3, 0.6), 10 ** rng.uniform(-2, 0.7), rng.uniform(0.2, 15)
    pool = SimPool(
        terms(least=rng.randint(0, 2)),
        evenly(rate),
        lambda: seconds,
        rng.randint(1, 4),
        rng.uniform(0.5, 60),
        start_time,
    )

    simulation = Simulation(pool).run(until=0.25 * HOUR)

    assert [change for change in simulation.changes if change[0] > 120 + 4 * start_time] == []


def test_calls_at_random_move_a_pool_a_few_times_in_four_hours():
    rng = random.Random(7)
    pool = SimPool(terms(), at_random(1.2, rng), lambda: rng.expovariate(1.0), slo=4.0)

    simulation = Simulation(pool).run(until=4 * HOUR)

    settled = [change for change in simulation.changes if change[0] > 120]
    assert len(settled) <= 6
    assert max(wait for _, wait in pool.waits) < 10


def test_a_burst_is_met_two_starts_at_a_time_and_its_workers_leave_later():
    pool = SimPool(terms(), together(200, 100.0), lambda: 1.0, slo=20.0)

    simulation = Simulation(pool).run(until=0.5 * HOUR)

    assert size_at(simulation, "p", 110) >= 5
    assert size_at(simulation, "p", 1700) == 1
    assert simulation.most_starting == 2
    assert max(wait for _, wait in pool.waits) < 40  # 200 with one worker


def test_a_growing_load_is_followed_before_calls_are_late():
    arrivals = itertools.chain.from_iterable(evenly(n, 300.0 * n, 300.0 * (n + 1)) for n in range(1, 7))
    pool = SimPool(terms(most=10), arrivals, lambda: 1.0, slo=20.0)

    simulation = Simulation(pool).run(until=2 * HOUR)

    sizes = [size_at(simulation, "p", 300.0 * (n + 1) - 1) for n in range(1, 7)]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 6
    assert max(wait for _, wait in pool.waits) < 20


def test_a_slow_start_starts_one_worker_and_not_one_each_tick():
    pool = SimPool(terms(least=0, cold_start=90.0), together(3, 100.0), lambda: 1.0, slo=30.0, start_time=90.0)

    simulation = Simulation(pool).run(until=300.0)

    assert [change[2] for change in simulation.changes] == [1]


def test_an_empty_pool_starts_with_its_first_call_and_empties_again():
    pool = SimPool(terms(least=0), together(1, 100.5), start_time=2.0)

    simulation = Simulation(pool).run(until=HOUR)

    assert [step for _, _, step in simulation.changes] == [1, -1]
    assert simulation.changes[0][0] <= 101.5
    assert simulation.changes[1][0] >= 160


def test_a_pool_that_crashes_delays_no_other():
    crashing = SimPool(terms("bad", 2, 4), evenly(1.0), life=0.2)
    sound = SimPool(terms("good", 2, 4), together(50, 200.0), lambda: 1.0, slo=10.0)

    simulation = Simulation(crashing, sound).run(until=600.0)

    assert size_at(simulation, "good", 3) == 2
    assert max(wait for _, wait in sound.waits) < 15
    assert simulation.reasons["bad"].count("crashlooping") == 1
    n_starts = sum(when > 200 for when, pool, _ in simulation.changes if pool == "bad")
    assert n_starts <= 400 / 30 * 2 + 2


def test_two_pools_share_one_gpu_in_turn_and_never_exceed_it():
    gpu = Claim(gpus=1)
    low = SimPool(terms("low", 0, 1, claim=gpu, priority=7), evenly(1.0, 0.0, 300.0), start_time=5.0)
    high = SimPool(terms("high", 0, 1, claim=gpu), evenly(1.0, 400.0, 700.0), start_time=5.0)

    simulation = Simulation(low, high, budget=Claim(1, 0)).run(until=HOUR)

    assert simulation.most_held == gpu
    assert (low.n_answered, high.n_answered) == (300, 300)
    assert simulation.changes[1][1:] == ("low", -1)  # idle for a minute, and in the way
    assert max(wait for _, wait in high.waits) < 10


@pytest.mark.parametrize("seed", range(12))
def test_no_load_makes_the_host_exceed_its_budget_or_lose_a_call(seed: int):
    rng = random.Random(seed)
    gpus = rng.randint(1, 4)
    pools = [
        SimPool(
            terms(name, rng.randint(0, 1), 5, claim=Claim(rng.choice([0.5, 1.0])), priority=rng.randint(1, 9)),
            at_random(rng.uniform(0.1, 5), rng, 0.0, 300.0),
            lambda: rng.expovariate(3.0),
            slo=rng.uniform(1, 20),
            start_time=rng.uniform(0.1, 20),
        )
        for name in "abc"
    ]

    simulation = Simulation(*pools, budget=Claim(gpus, 0)).run(until=0.5 * HOUR)

    assert simulation.most_held.gpus <= gpus
    assert simulation.most_starting <= 2
    for pool in pools:
        assert pool.n_answered == pool.n_admitted - len(pool.queue)
        assert size_at(simulation, pool.name, 0.5 * HOUR) <= 5
