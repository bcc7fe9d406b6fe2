"""A round of load, in this process."""

from __future__ import annotations

from array import array
from dataclasses import replace
from time import monotonic

import pytest

from corosrv.client.bench.plan import BenchPlan, LatencyLimits, Mix, Point
from corosrv.client.bench.round import Counts, Load, Work
from corosrv.client.bench.target import Failure, FailureKind, RequestOutcome, parse
from tests.client.bench.handmade import HandMade
from tests.client.bench.streams import error


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


def test_a_conversation_goes_on_with_what_was_answered(handmade):
    outcomes = load(handmade, Point(clients=1), requests=2, turns=3)
    roles = [[turn["role"] for turn in body["messages"]] for body in handmade.bodies]

    assert len(outcomes) == 6
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"]] * 2
    assert handmade.bodies[2]["messages"][1] == {"role": "assistant", "content": "aaaa"}


def test_a_conversation_ends_with_a_failure(handmade):
    handmade.answer = error(500, "no")

    assert [outcome.failure is None for outcome in load(handmade, Point(1), requests=2, turns=3)] == [False, False]


def test_a_round_that_cannot_succeed_any_more_ends(handmade):
    limits = LatencyLimits(ttft=1e-6)
    outcomes = load(handmade, Point(rate=20.0), requests=400, finds_goodput=True, limits=limits)

    assert 5 <= len(outcomes) < 100


@pytest.mark.parametrize(
    ("limits", "is_kept"),
    [
        (LatencyLimits(), True),
        (LatencyLimits(ttft=1.0), True),
        (LatencyLimits(ttft=0.9), False),
        (LatencyLimits(itl=0.5), True),
        (LatencyLimits(itl=0.4), False),
        (LatencyLimits(1.0, 0.5), True),
        (LatencyLimits(1.0, 0.4), False),
    ],
)
def test_limits_are_of_the_first_token_and_of_the_mean_between_tokens(limits, is_kept):
    outcome = RequestOutcome(10.0, 13.0, array("d", [11.0, 11.2, 13.0]), 3, 5)  # five tokens in two seconds

    assert outcome.keeps(limits) == is_kept
    assert not replace(outcome, failure=Failure(FailureKind.CUT, "")).keeps(limits)
