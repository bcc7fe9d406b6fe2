"""What callers are charged for, where they begin, and who is remembered."""

from __future__ import annotations

import pytest

from corosrv.workers.dispatch.ledger import MAX_IDLE, SETTLE_AFTER, CallerAccount, Ledger


def hold(ledger: Ledger, account: CallerAccount, seconds: float, permits: float = 1.0) -> None:
    """Charges a caller for one more call, as if it had run since time began."""
    ledger.join(account.caller, account.tier, account.weight)
    ledger.start(account, permits, 0.0)
    ledger.stop(account, permits, seconds)
    ledger.leave(account, waits=False)


def test_callers_are_charged_for_seconds_of_permits_by_their_weights():
    ledger = Ledger()
    light, heavy = ledger.join("light"), ledger.join("heavy", weight=4.0)

    hold(ledger, light, 2.0)
    hold(ledger, heavy, 2.0)
    hold(ledger, heavy, 4.0, permits=0.5)

    assert (light.virtual_s, heavy.virtual_s) == (2.0, 1.0)


def test_each_permit_that_is_held_counts_for_as_long_as_it_is():
    ledger = Ledger()
    account = ledger.join("a")

    ledger.start(account, 1.0, 10.0)
    ledger.start(account, 1.0, 11.0)
    ledger.stop(account, 1.0, 14.0)
    ledger.stop(account, 1.0, 16.0)

    assert account.virtual_s == 1 + 2 * 3 + 2
    assert (account.permits, account.n_running) == (0.0, 0)


def test_what_runs_counts_before_it_ends():
    ledger = Ledger()
    account = ledger.join("a")
    ledger.start(account, 1.0, 10.0)

    ledger.settle(13.0)
    ledger.settle(13.0 + SETTLE_AFTER / 2)
    assert account.virtual_s == 3.0

    ledger.settle(14.0)
    assert account.virtual_s == 4.0


def test_who_comes_while_nobody_waits_gets_no_lead_over_those_whose_calls_run():
    ledger = Ledger()
    ledger.start(ledger.join("long"), 1.0, 0.0)
    ledger.start(ledger.join("short"), 1.0, 590.0)

    ledger.settle(600.0)

    assert ledger.join("new").virtual_s == 600.0


def test_who_comes_or_comes_back_begins_where_the_least_of_the_others_stands():
    ledger = Ledger()
    one, two = ledger.join("one"), ledger.join("two")
    hold(ledger, one, 5.0)
    hold(ledger, two, 3.0)
    three = ledger.join("three")
    assert three.virtual_s == 3.0

    ledger.leave(three, waits=True)
    hold(ledger, two, 4.0)

    assert ledger.join("three").virtual_s == 5.0


def test_who_has_had_more_than_others_does_not_lose_that_by_leaving():
    ledger = Ledger()
    ledger.join("one")
    account = ledger.join("two")
    hold(ledger, account, 5.0)

    ledger.leave(account, waits=True)

    assert ledger.join("two").virtual_s == 5.0


def test_one_whose_call_has_ended_is_not_idle_while_its_permit_is_held():
    ledger = Ledger()
    ledger.join("one")
    account = ledger.join("two")
    ledger.start(account, 1.0, 0.0)
    ledger.leave(account, waits=False)

    assert ledger.join("two") is account
    ledger.stop(account, 1.0, 7.0)

    assert account.virtual_s == 7.0


def test_an_idle_caller_is_forgotten_once_that_changes_nothing():
    ledger = Ledger()
    one, two = ledger.join("one"), ledger.join("two")
    hold(ledger, one, 5.0)
    ledger.leave(one, waits=True)
    ledger.join("three")
    assert len(ledger) == 3

    hold(ledger, two, 6.0)
    hold(ledger, ledger.join("three"), 6.0)
    ledger.join("four")

    assert len(ledger) == 3


def test_of_callers_that_come_once_no_more_are_remembered_than_may_be():
    ledger = Ledger()
    ledger.join("stays")
    for number in range(3 * MAX_IDLE):
        account = ledger.join(str(number))
        hold(ledger, account, 1.0 + number)
        ledger.leave(account, waits=True)

    assert len(ledger) <= MAX_IDLE + 1
    assert sum(map(len, ledger._heaps.values())) <= len(ledger) + MAX_IDLE
    assert ledger.join(str(number)).virtual_s == 1.0 + number


@pytest.mark.parametrize("tier", [0, 1])
def test_the_last_call_of_a_caller_says_its_tier_and_its_weight(tier: int):
    ledger = Ledger()
    one, two = ledger.join("one", tier), ledger.join("two", 3)
    hold(ledger, one, 7.0)
    hold(ledger, two, 2.0)

    assert ledger.join("one", 3, 2.0) is one

    assert (one.tier, one.virtual_s, one.weight) == (3, 2.0, 2.0)


def test_where_a_tier_has_nobody_the_others_say_where_one_begins():
    ledger = Ledger()
    hold(ledger, ledger.join("one"), 5.0)

    assert ledger.join("two", 1).virtual_s == 5.0


def test_two_ledgers_become_one_in_which_nobody_is_behind_for_what_came_before():
    ledger, other = Ledger(), Ledger()
    hold(ledger, ledger.join("one"), 100.0)
    two, three = other.join("two"), other.join("three")
    hold(other, three, 2.0)
    other.start(two, 1.0, 10.0)

    ledger.absorb(other)
    ledger.settle(11.0)

    assert (two.virtual_s, three.virtual_s) == (99.0, 100.0)
    assert ledger.join("three") is three
    assert len(ledger) == 3


def test_one_that_only_runs_is_not_compared_with_those_that_wait_and_is_lifted_when_it_does():
    ledger = Ledger()
    busy, quiet = ledger.join("busy"), ledger.join("quiet")
    ledger.start(quiet, 1.0, 0.0)
    hold(ledger, busy, 100.0)

    assert ledger.join("new").virtual_s == 100.0
    assert quiet.virtual_s == 0.0
    assert ledger.join("quiet") is quiet
    assert quiet.virtual_s == 100.0


def test_where_nobody_waits_one_begins_where_the_last_one_started():
    ledger = Ledger()
    one = ledger.join("one")
    hold(ledger, one, 7.0)
    ledger.start(one, 1.0, 10.0)

    assert ledger.join("two").virtual_s == 7.0


def test_one_whose_call_waits_once_more_is_compared_again():
    ledger = Ledger()
    one, two = ledger.join("one"), ledger.join("two")
    ledger.start(one, 1.0, 0.0)
    hold(ledger, two, 9.0)
    ledger.join("three")
    ledger.stop(one, 1.0, 4.0)

    ledger.wait_again(one)

    assert (one.virtual_s, one.n_waiting) == (9.0, 1)
    assert ledger.join("four").virtual_s == 9.0


def test_one_that_was_not_compared_while_it_ran_is_forgotten_like_others():
    ledger = Ledger()
    quiet, busy = ledger.join("quiet"), ledger.join("busy")
    ledger.start(quiet, 1.0, 0.0)
    hold(ledger, busy, 9.0)
    ledger.join("other")
    ledger.leave(quiet, waits=False)
    ledger.stop(quiet, 1.0, 1.0)
    assert len(ledger) == 3

    ledger.join("new")

    assert len(ledger) == 3
