"""The breaker of an upstream, with the time passed in."""

from __future__ import annotations

import math

import pytest

from corosrv.fleet.upstreams.failures import (
    FAULT_WINDOW,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_FAULTS,
    Breaker,
    BreakerState,
    FaultShare,
)


def fail(breaker: Breaker, n: int, now: float = 0.0, jitter: float = 1.0) -> None:
    for _ in range(n):
        breaker.fail(breaker.begin(now), now, jitter)


def opened(jitter: float = 1.0) -> Breaker:
    """Returns a breaker that has opened at time 0, for FIRST_PAUSE seconds with the full jitter."""
    breaker = Breaker()
    fail(breaker, MAX_FAULTS, jitter=jitter)
    return breaker


def test_a_new_breaker_lets_calls_pass_beside_each_other():
    breaker = Breaker()

    assert [breaker.begin(0.0) for _ in range(3)] == [False] * 3
    assert breaker.lets_pass(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_five_faults_in_a_row_open_it_and_four_do_not():
    breaker = Breaker()

    fail(breaker, 4)
    assert breaker.lets_pass(0.0)
    fail(breaker, 1)

    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.lets_pass(0.0)


def test_an_answer_between_faults_begins_the_count_anew():
    breaker = Breaker()

    fail(breaker, 4)
    breaker.succeed(breaker.begin(0.0), 0.0)
    fail(breaker, 4)

    assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_stays_open_for_its_pause_and_then_tries():
    breaker = opened()

    assert not breaker.lets_pass(FIRST_PAUSE - 0.01)
    assert breaker.lets_pass(FIRST_PAUSE)
    assert breaker.state(FIRST_PAUSE) is BreakerState.TRYING


def test_each_trial_that_fails_doubles_the_pause_up_to_a_minute():
    breaker = opened()
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(breaker.next_change(now) - now)
        now = breaker.next_change(now)
        fail(breaker, 1, now)

    assert pauses == [5, 10, 20, 40, 60, 60, LONGEST_PAUSE]


@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 4.0), (0.5, 4.5), (1.0, 5.0)])
def test_jitter_shortens_a_pause_by_a_fifth_at_most(jitter: float, seconds: float):
    assert opened(jitter).next_change(0.0) == pytest.approx(seconds)


def test_one_trial_passes_and_none_beside_it():
    breaker = opened()

    assert breaker.begin(6.0)
    assert not breaker.lets_pass(6.0)
    assert not breaker.lets_pass(1000.0)


def test_two_good_trials_close_it():
    breaker = opened()

    breaker.succeed(breaker.begin(6.0), 6.0)
    assert breaker.state(6.0) is BreakerState.TRYING
    assert breaker.lets_pass(6.0)
    breaker.succeed(breaker.begin(6.0), 6.0)

    assert breaker.state(6.0) is BreakerState.CLOSED
    assert [breaker.begin(6.0), breaker.begin(6.0)] == [False, False]


def test_trials_must_go_well_one_after_the_other():
    breaker = opened()

    breaker.succeed(breaker.begin(6.0), 6.0)
    fail(breaker, 1, 6.0)
    later = breaker.next_change(6.0)
    breaker.succeed(breaker.begin(later), later)

    assert breaker.state(later) is BreakerState.TRYING


def test_closing_resets_the_pause_and_the_count():
    breaker = opened()
    fail(breaker, 1, 6.0)  # a second opening, of 10 s
    for _ in range(2):
        breaker.succeed(breaker.begin(20.0), 20.0)

    fail(breaker, 4, 20.0)
    assert breaker.state(20.0) is BreakerState.CLOSED
    fail(breaker, 1, 20.0)

    assert breaker.next_change(20.0) == 20.0 + FIRST_PAUSE


def test_late_ends_of_calls_that_began_before_it_opened_change_nothing():
    breaker = Breaker()
    early = [breaker.begin(0.0) for _ in range(4)]
    fail(breaker, MAX_FAULTS)

    breaker.fail(early[0], 4.0, 1.0)
    breaker.succeed(early[1], 4.0)
    assert breaker.next_change(4.0) == FIRST_PAUSE
    is_trial = breaker.begin(6.0)
    breaker.fail(early[2], 6.0, 1.0)
    breaker.succeed(early[3], 6.0)

    assert is_trial
    assert breaker.state(6.0) is BreakerState.TRYING
    assert not breaker.lets_pass(6.0)


def test_a_trial_whose_client_left_makes_room_for_another():
    breaker = opened()

    breaker.forget_trial(breaker.begin(6.0))

    assert breaker.lets_pass(6.0)
    assert breaker.state(6.0) is BreakerState.TRYING


def test_a_client_that_left_frees_no_trial_of_somebody_else():
    breaker = opened()
    breaker.begin(6.0)

    breaker.forget_trial(False)

    assert not breaker.lets_pass(6.0)


def test_a_pause_that_the_upstream_asked_for_is_no_fault():
    breaker = Breaker()

    for _ in range(10):
        breaker.pause(30.0)

    assert not breaker.lets_pass(29.0)
    assert breaker.lets_pass(30.0)
    assert breaker.state(29.0) is BreakerState.CLOSED


def test_a_shorter_pause_does_not_end_a_longer_one():
    breaker = Breaker()

    breaker.pause(30.0)
    breaker.pause(10.0)

    assert breaker.next_change(0.0) == 30.0


@pytest.mark.parametrize(("asked", "change"), [(0.0, 5.0), (3.0, 5.0), (30.0, 30.0)])
def test_the_next_change_is_the_end_of_the_longer_pause(asked: float, change: float):
    breaker = opened()
    breaker.pause(asked)

    assert breaker.next_change(1.0) == change
    assert not breaker.lets_pass(change - 0.01)
    assert breaker.lets_pass(change)


def test_time_alone_changes_nothing_once_calls_pass():
    breaker = opened()

    assert Breaker().next_change(0.0) == math.inf
    assert breaker.state(6.0) is BreakerState.TRYING
    assert breaker.next_change(6.0) == math.inf


# The share of faults.


@pytest.mark.parametrize(
    ("calls", "seconds", "is_too_much"),
    [
        # Each "-" is a fault, each "+" a good call; so many seconds pass between two.
        ("-+" * 9 + "-", 0.1, False),  # 19 calls
        ("-+" * 10, 0.1, True),
        ("++-" * 20, 0.1, False),  # a third
        ("+" * 11 + "-" * 9, 0.1, False),
        ("+" * 10 + "-" * 10, 0.1, True),
        ("-+" * 100, 1.6, False),  # never 20 in 30 seconds
        ("-" * 10 + "+" * 10, 0.1, True),
        ("-" * 10 + "+" * 30, 1.0, False),  # the faults are forgotten
        ("+" * 100 + "-" * 20, 1.0, True),  # the good calls are
    ],
)
def test_half_of_the_calls_of_a_window_are_too_many_faults(calls: str, seconds: float, is_too_much: bool):
    share, now, answer = FaultShare(), 100.0, False

    for call in calls:
        answer = share.note(call == "-", now)
        now += seconds

    assert answer is is_too_much


def test_faults_between_good_calls_open_it():
    breaker = Breaker()

    for i in range(10):
        breaker.succeed(breaker.begin(i), i)
        fail(breaker, 1, i)

    assert breaker.state(9.0) is BreakerState.OPEN


def test_a_breaker_that_is_closed_again_counts_its_share_anew():
    breaker = Breaker()
    for i in range(10):
        breaker.succeed(breaker.begin(i), i)
        fail(breaker, 1, i)
    for _ in range(2):
        breaker.succeed(breaker.begin(20.0), 20.0)

    fail(breaker, 4, 20.0)

    assert FAULT_WINDOW > 20
    assert breaker.state(20.0) is BreakerState.CLOSED
