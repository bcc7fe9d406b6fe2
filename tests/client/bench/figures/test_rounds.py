"""Outcomes to the figures of a round."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from corosrv.client.bench.figures import figures, gaps
from corosrv.client.bench.target import Failure, FailureKind, RequestOutcome


def outcome(began: float, *arrivals: float, ended: float | None = None, **more: Any) -> RequestOutcome:
    """One token with each arrival, unless told otherwise."""
    end = arrivals[-1] if ended is None else ended
    chosen = {"tokens": len(arrivals), "events": len(arrivals), "finish": "length", "is_counted_by_usage": True} | more
    return RequestOutcome(began, end, array("d", arrivals), **chosen)


TWO = [outcome(0.0, 0.5, 1.0, 1.5), outcome(1.0, 1.25, 1.75, 3.0, 4.0)]


def test_rates_are_of_the_time_from_the_first_beginning_to_the_last_end():
    seen = figures(TWO, (1.0,), cores=2, max_tokens=3)

    assert (seen.seconds, seen.requests, seen.tokens) == (4.0, 2, 7)
    assert (seen.tokens_per_s, seen.requests_per_s) == (7 / 4, 2 / 4)


def test_latencies_are_of_each_stream():
    seen = figures(TWO, (1.0,), cores=2, max_tokens=3)

    assert seen.ttft is not None
    assert (seen.ttft.max, seen.ttft.n) == (0.5, 2)
    assert sorted(gaps(TWO)) == [0.5, 0.5, 0.5, 1.0, 1.25]
    assert seen.total is not None
    assert seen.total.max == 3.0


def test_a_stream_s_speed_counts_from_its_first_token():
    seen = figures([outcome(0.0, 5.0, 5.5, 6.0)], (0.0,), 1, 3)

    assert seen.stream_tokens_per_s == pytest.approx(2.0)


def test_tokens_of_one_read_are_told():
    seen = figures([outcome(0.0, 1.0, 2.0, tokens=8)], (0.0,), 1, 8)

    assert seen.tokens_per_arrival == 4.0
    assert seen.stream_tokens_per_s == pytest.approx(4.0)


def test_failures_are_counted_by_kind_and_nothing_else_counts_them():
    bad = outcome(0.0, 1.0, failure=Failure(FailureKind.STATUS, "out of memory", 500), tokens=1)
    late = outcome(0.0, ended=9.0, failure=Failure(FailureKind.TIMEOUT, "late"), tokens=0)

    seen = figures([*TWO, bad, bad, late], (1.0,), 1, 3)

    assert seen.failures == {"HTTP 500": 2, "timeout": 1}
    assert (seen.failed, seen.example, seen.tokens) == (3, "out of memory", 7)
    assert seen.ttft is not None
    assert seen.ttft.n == 2


def test_while_long_prompts_arrive_only_gaps_of_that_time_count():
    running = outcome(0.0, 1.0, 2.0, 2.5, 4.5, 8.0, 8.25)
    long = [outcome(2.25, 5.0, 6.0, is_arriving=True), outcome(3.0, 7.0, 20.0, is_arriving=True)]

    assert list(gaps([running, *long])) == [0.5, 2.0]
    seen = figures([running, *long], (0.0,), 1, 2)
    assert seen.arriving_ttft is not None
    assert seen.arriving_ttft.max == 4.0
    assert seen.ttft is not None
    assert seen.ttft.max == 1.0


def test_a_stop_before_the_asked_length_is_told():
    seen = figures([outcome(0.0, 1.0, finish="stop"), *TWO], (0.0,), 1, max_tokens=3)

    assert seen.early_stops == 1


@pytest.mark.parametrize(
    ("by_usage", "told"), [((True, True), "usage"), ((False, False), "events"), ((True, False), "both")]
)
def test_how_tokens_were_counted_is_told(by_usage, told):
    outcomes = [outcome(0.0, 1.0, is_counted_by_usage=one) for one in by_usage]

    assert figures(outcomes, (0.0,), 1, 1).counted_by == told


def test_the_client_s_processor_time_is_told_and_doubted():
    seen = figures(TWO, (3.6, 0.4), cores=4, max_tokens=3).cpu

    assert (seen.core, seen.machine) == (pytest.approx(0.9), pytest.approx(0.25))
    assert seen.us_per_event == pytest.approx(4e6 / 7)
    assert seen.is_limit
    assert not figures(TWO, (1.0,), cores=4, max_tokens=3).cpu.is_limit


def test_a_round_of_nothing_has_figures():
    seen = figures([], (0.0,), 1, 1)

    assert (seen.tokens_per_s, seen.ttft, seen.failed) == (0.0, None, 0)
