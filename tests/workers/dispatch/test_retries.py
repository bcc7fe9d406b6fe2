"""Which calls are tried again, and how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    Unavailable,
    WorkerLost,
)
from corosrv.workers.dispatch.lives import PERIOD, RetryBudget, may_retry, pause
from tests.workers.dispatch.hosts import Front, card, ended, error_of

LOST = WorkerLost("lost")


def test_only_a_lost_worker_is_a_reason():
    assert may_retry(True, LOST, 1, has_sent=False, is_batch=False)
    for error in (HandlerFailed(""), CallRefused(""), DeadlinePassed(""), CallCancelled(""), Unavailable("")):
        assert not may_retry(True, error, 1, has_sent=False, is_batch=False)


@pytest.mark.parametrize("error", [LOST, HandlerFailed("failed")])
def test_a_batch_that_failed_is_a_reason(error: CorosrvError):
    assert may_retry(True, error, 1, has_sent=False, is_batch=True)
    assert not may_retry(True, DeadlinePassed(""), 1, has_sent=False, is_batch=True)


def test_nothing_is_tried_again_that_may_run_once_only_or_was_sent_or_ran_twice():
    assert not may_retry(False, LOST, 1, has_sent=False, is_batch=False)
    assert not may_retry(False, LOST, 1, has_sent=False, is_batch=True)
    assert not may_retry(True, LOST, 1, has_sent=True, is_batch=False)
    assert not may_retry(True, LOST, 2, has_sent=False, is_batch=False)


def test_the_pause_doubles_and_has_full_jitter():
    assert [pause(n, 1.0) for n in (1, 2, 3)] == [0.05, 0.1, 0.2]
    assert pause(3, 0.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0.1, 0.7, 3, 20]), st.booleans()), max_size=300))
def test_retries_never_exceed_their_share_of_any_ten_seconds(events: list[tuple[float, bool]]):
    budget, now = RetryBudget(), 1000.0
    calls: list[float] = []
    retries: list[float] = []
    for seconds, is_call in events:
        now += seconds
        if is_call:
            budget.count_call(now)
            calls.append(now)
        elif budget.spend(now):
            retries.append(now)
        # Counted by whole seconds, the window holds at least the last nine of them.
        recent = [at for at in retries if at > now - PERIOD + 1]
        assert len(recent) <= 0.1 * sum(at > now - PERIOD for at in calls) + 3 * PERIOD


def test_a_budget_that_was_spent_is_there_again_later():
    budget = RetryBudget()
    while budget.spend(5):
        pass

    assert not budget.spend(14)
    assert budget.spend(15)


class Worker:
    """A worker as the budget knows it."""


def test_all_calls_that_one_worker_was_running_when_it_died_cost_one_retry():
    budget, worker = RetryBudget(), Worker()
    left = budget.left(5)

    assert all(budget.spend_for_loss(5.0 + i / 100, worker, started_at=i / 100) for i in range(200))

    assert budget.left(5) == left - 1


def test_calls_that_a_worker_got_after_it_was_lost_cost_another_retry():
    budget, worker = RetryBudget(), Worker()
    left = budget.left(5)

    budget.spend_for_loss(5.0, worker, started_at=1.0)
    budget.spend_for_loss(6.0, worker, started_at=5.5)
    budget.spend_for_loss(6.0, Worker(), started_at=1.0)

    assert budget.left(6) == left - 3


def test_a_loss_for_which_nothing_is_left_is_not_remembered():
    budget, worker = RetryBudget(), Worker()
    while budget.spend(5):
        pass

    assert [budget.spend_for_loss(5.0, worker, started_at=1.0) for _ in range(2)] == [False, False]


def test_a_call_that_no_worker_here_can_repeat_ends_as_its_attempt_did():
    front = Front.make()
    again = card(is_idempotent=True)
    front.dispatcher.expect("other", [again], patience=1.0)  # which keeps the key callable, and starts none
    host = front.add("p/0", again)
    reader = front.call()

    front.dispatcher.remove_host(host)
    host.die()
    front.clock.pass_time(1)
    front.clock.pass_time(1)

    assert ended(reader)
    assert isinstance(error_of(reader), WorkerLost)


def test_a_call_that_is_repeated_asks_for_the_worker_that_it_needs():
    front, needs = Front.make(), []
    again = card(is_idempotent=True)
    front.dispatcher.expect("p", [again])
    front.dispatcher.on_need(needs.append)
    host = front.add("p/0", again)
    reader = front.call()

    front.dispatcher.remove_host(host)
    host.die()
    front.clock.pass_time(1)

    assert needs == ["p"]
    front.add("p/0", again, incarnation=2).calls[0].finish()
    assert error_of(reader) is None
