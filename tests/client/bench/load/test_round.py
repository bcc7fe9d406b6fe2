"""A round of load, in this process."""

from __future__ import annotations

from time import monotonic

import pytest

from corosrv.client.bench.load.plan import BenchPlan, Mix, Point
from corosrv.client.bench.load.round import Counts, Load, Work
from corosrv.client.bench.load.target import RequestOutcome, parse
from tests.client.bench.handmade import HandMade


def load(server: HandMade, point: Point, begin: float = 0.0, **plan: object) -> list[RequestOutcome]:
    """The outcomes of a round that was to begin so many seconds ago."""
    work = Work(parse(server.url, model="m"), BenchPlan(**{"tokens": 4, "timeout": 20.0, **plan}), point, number=0)
    return Load(work).run(monotonic() - begin, lambda counts: None).outcomes


def test_with_a_rate_a_late_request_counts_from_when_it_was_due(handmade):
    outcomes = load(handmade, Point(rate=100.0), begin=50.0, requests=5)

    assert len(outcomes) == 5
    assert all(outcome.ttft is not None and outcome.ttft > 45 for outcome in outcomes)


def test_with_clients_a_request_counts_from_its_own_beginning(handmade):
    outcomes = load(handmade, Point(clients=2), begin=50.0, requests=5)

    assert all(outcome.total < 45 for outcome in outcomes)


def test_long_prompts_count_from_when_they_were_due_and_run_among_others(handmade):
    outcomes = load(handmade, Point(2, 500.0), mix=Mix.ARRIVALS, requests=4)

    assert sum(outcome.is_arriving for outcome in outcomes) == 4
    assert sum(not outcome.is_arriving for outcome in outcomes) >= 2


def test_the_last_counts_are_of_all(handmade):
    seen: list[Counts] = []
    work = Work(parse(handmade.url, model="m"), BenchPlan(tokens=4, requests=3), Point(clients=2), number=0)
    done = Load(work).run(monotonic(), seen.append)

    assert seen[-1] == Counts(done=3, failed=0, open=0, events=12)
    assert done.cpu > 0
    assert not done.is_interrupted


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_sends_its_share(handmade, part):
    work = Work(parse(handmade.url, model="m"), BenchPlan(tokens=4, requests=5), Point(clients=2), 0, part, 2)
    done = Load(work).run(monotonic(), lambda counts: None)

    assert len(done.outcomes) == (3, 2)[part]
