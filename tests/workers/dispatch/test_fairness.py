"""Whose call is next where callers share permits, whose gives way in a full queue, and what each is told to expect."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest

from corosrv.base.errors import NotHandedOver, QueueFull
from corosrv.contracts.jobs.infer import BatchLimits
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.ledger import CallerAccount
from corosrv.workers.dispatch.waiting import CallerShares
from tests.workers.dispatch.hosts import FakeHost, Front, card, ended, error_of


@pytest.fixture
def front() -> Front:
    return Front.make()


def callers(host: FakeHost) -> list[str]:
    """Returns whose calls run, the oldest first."""
    return [item.caller for call in host.calls for item in call.call.items]


def run_all(front: Front, host: FakeHost, seconds: float = 1.0) -> str:
    """Lets one call after the other run for so many seconds; returns whose they were."""
    order = ""
    while host.calls:
        order += callers(host)[0]
        front.clock.pass_time(seconds)
        host.calls[0].finish()
    return order


# Whose turn it is.


def test_a_caller_with_one_client_is_next_beside_one_with_forty(front: Front):
    host = front.add("p/0", n_slots=4)
    for _ in range(40):
        front.call(caller="greedy")

    front.call(caller="modest")
    front.clock.pass_time(0.05)
    host.calls[0].finish()

    assert callers(host) == ["greedy"] * 3 + ["modest"]


def test_a_priority_orders_the_calls_of_its_caller_alone(front: Front):
    host = front.add("p/0")
    front.call(caller="a")
    for priority in (1, 1, 9):
        front.call(caller="b", priority=priority)
    front.call(caller="a", priority=1)
    front.call(caller="a", priority=9)

    assert run_all(front, host) == "abbaba"


def test_seconds_count_and_not_calls(front: Front):
    host = front.add("p/0")
    for caller in "aabbbbbb":
        front.call(caller=caller)
    order = ""

    while host.calls:
        order += callers(host)[0]
        front.clock.pass_time(4 if order[-1] == "a" else 1)
        host.calls[0].finish()

    assert order == "abbbbabb"


def test_shares_are_as_large_as_weights(front: Front):
    host = front.add("p/0")
    for _ in range(30):
        front.call(caller="a", weight=2.0)
        front.call(caller="b")

    assert Counter(run_all(front, host)[:30]) == {"a": 20, "b": 10}


def test_a_better_tier_goes_first_until_others_have_waited_for_half_a_minute(front: Front):
    host = front.add("p/0")
    front.call(caller="a")
    front.call(caller="b", tier=1)
    for _ in range(40):
        front.call(caller="a")

    assert run_all(front, host)[:33].index("b") == 30


def test_a_call_that_still_runs_counts_for_its_caller(front: Front):
    host = front.add("p/0", n_slots=2)
    for caller in ("long", "short", "long", "short"):
        front.call(caller=caller)
    front.clock.pass_time(1)

    host.calls[1].finish()

    assert callers(host) == ["long", "short"]


def test_a_caller_whose_one_call_always_runs_saves_up_nothing_for_those_that_come(front: Front):
    host = front.add("p/0", n_slots=4)
    front.call(caller="quiet")
    for _ in range(20):
        front.call(caller="busy")
    for _ in range(9):
        front.clock.pass_time(5)
        host.calls[1].finish()
    for _ in range(4):
        front.call(caller="new")
        front.call(caller="quiet")
    started = []

    for _ in range(6):
        front.clock.pass_time(1)
        host.calls[1].finish()
        started.append(callers(host)[-1])

    assert started == ["new", "new", "quiet", "new", "busy", "busy"]


def test_flows_of_one_caller_have_shares_of_their_own(front: Front):
    host = front.add("p/0")
    for flow in "xxxy":
        front.call(caller="a", owner=f"a {flow}")
    order = ""

    while host.calls:
        order += host.calls[0].call.items[0].owner[-1]
        front.clock.pass_time(1)
        host.calls[0].finish()

    assert order == "xyxx"


def test_a_permit_counts_for_its_caller_until_it_is_free_also_when_its_call_was_cancelled(front: Front):
    host = front.add("p/0")
    cancelled = front.call(caller="a")
    for caller in "abb":
        front.call(caller=caller)
    cancelled.cancel()
    front.clock.pass_time(3)
    host.calls[0].finish()

    assert run_all(front, host) == "bba"


def test_the_calls_of_a_batch_have_a_part_of_its_seconds_each(front: Front):
    host = front.add("p/0", card("batch", batch=BatchLimits(4, 0)), card("single"))
    front.call("single")
    for caller in "aaab":
        front.call("batch", caller=caller)
    host.calls[0].finish()
    assert sorted(callers(host)) == ["a", "a", "a", "b"]
    for caller in "aabb":
        front.call("single", caller=caller)
    front.clock.pass_time(4)
    host.calls[0].finish()  # a has had three seconds, and b has had one

    assert run_all(front, host, 0.9) == "bbaa"


def test_calls_that_have_left_a_batch_that_gathers_are_not_kept(front: Front):
    front.add("p/0", card("batch", batch=BatchLimits(4, 0)))
    for _ in range(2):
        front.call("batch")
    for number in range(1000):
        front.call("batch", caller=str(number)).cancel()

    queue = front.dispatcher._waiting.get("model:batch:")
    assert queue is not None
    (gathering,) = queue._gatherings.values()
    assert len(gathering._arrivals) < 100


def test_what_a_handler_calls_counts_for_whoever_called_the_handler(front: Front):
    host = front.add("p/0", card("a"))
    other = front.add("q/0", card("b"))
    front.call("a", caller="asks")
    front.call("b", caller="asks", waiting_keys=("model:a:",))
    front.call("b", caller="asks")
    front.call("b", caller="other")
    front.clock.pass_time(1)

    other.calls[0].finish()

    assert callers(other) == ["other"]
    assert callers(host) == ["asks"]


def test_a_call_that_could_not_be_handed_over_is_its_callers_next_again(front: Front):
    host = front.add("p/0")
    for caller, name in (("a", "runs"), ("a", "first"), ("a", "second"), ("b", "other")):
        front.call(caller=caller, request_id=name)
    host.calls[0].finish()
    front.clock.pass_time(1)
    names = [host.calls[0].call.items[0].request_id]

    host.calls[0].fail(NotHandedOver("the lane is closed"))
    while host.calls:
        names.append(host.calls[0].call.items[0].request_id)
        front.clock.pass_time(1)
        host.calls[0].finish()

    assert names == ["first", "other", "first", "second"]


def test_handlers_that_share_permits_have_one_ledger_whichever_workers_they_have(front: Front):
    host = front.add("p/0", card("a"), card("b"))
    for model, caller in (("a", "x"), ("b", "x"), ("b", "y"), ("a", "x"), ("a", "y")):
        front.call(model, caller=caller)
    front.clock.pass_time(5)

    assert run_all(front, host) == "xyyxx"


def test_what_a_caller_had_while_nobody_waited_is_no_debt(front: Front):
    host = front.add("p/0")
    front.call(caller="x")
    front.clock.pass_time(5)
    for caller in "xyxy":
        front.call(caller=caller)

    assert run_all(front, host) == "xyxyx"


def test_what_a_caller_has_had_of_other_workers_does_not_count(front: Front):
    front.add("p/0", card("a"))
    host = front.add("q/0", card("b"))
    front.call("a", caller="x")
    front.clock.pass_time(1000)
    for caller in "yyyxx":
        front.call("b", caller=caller)

    assert run_all(front, host) == "yxyxy"


def test_calls_that_wait_where_handlers_begin_to_share_permits_go_on(front: Front):
    a, b = front.add("p/0", card("a")), front.add("q/0", card("b"))
    for model, caller in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"), ("b", "x"), ("b", "y")):
        front.call(model, caller=caller)
    front.clock.pass_time(2)

    both = front.add("r/0", card("a"), card("b"))
    orders = [run_all(front, host) for host in (both, a, b)]

    assert "".join(sorted("".join(orders))) == "xxxyyy"
    assert len({entry.ledger for entry in front.dispatcher._registry}) == 1
    assert_nothing_is_held(front)


def assert_nothing_is_held(front: Front) -> None:
    for entry in front.dispatcher._registry:
        assert not entry.ledger._running
        assert all(account.is_idle for account in entry.ledger._accounts.values())


def test_a_refused_call_leaves_nothing_behind(front: Front):
    host = front.add("p/0", card(max_queue=1))
    front.call(caller="a")
    front.call(caller="a")

    with pytest.raises(QueueFull):
        front.call(caller="b")
    run_all(front, host)

    assert_nothing_is_held(front)


# A full queue.


def full(front: Front, *waiting: str, **options: object) -> list[HandlerReader]:
    """Lets calls of these callers wait, no more of which may, for a worker whose calls take two seconds."""
    host = front.add("p/0", card(max_queue=len(waiting), **options))
    front.call(caller="a")
    front.clock.pass_time(2)
    host.calls[0].finish()
    front.call(caller="a")
    return [front.call(caller=caller) for caller in waiting]


def test_in_a_full_queue_the_caller_with_most_gives_a_place_to_one_with_less(front: Front):
    waiting = full(front, *"bbaaaaaa")

    other = front.call(caller="c")

    assert [ended(reader) for reader in waiting] == [False] * 7 + [True]
    error = error_of(waiting[7])
    assert isinstance(error, QueueFull)
    assert "a call of another caller took its place" in str(error)
    assert error.retry_after is not None
    assert error.retry_after >= 2
    assert not ended(other)
    assert front.key().depth == 8


def test_callers_have_the_same_number_of_places_in_the_end_and_then_change_nothing(front: Front):
    full(front, *"aaaaaaaa")
    for _ in range(4):
        front.call(caller="b")

    for caller in "abba":
        with pytest.raises(QueueFull):
            front.call(caller=caller)


def test_places_are_shared_by_weight(front: Front):
    full(front, *"aaaaaaaa")

    for _ in range(6):
        front.call(caller="b", weight=3.0)
    with pytest.raises(QueueFull):
        front.call(caller="b", weight=3.0)

    n_waiting = Counter(call.job.terms.caller for call in front.dispatcher._waiting.calls_of("model:add:"))
    assert n_waiting == {"a": 2, "b": 6}


def test_a_caller_of_a_better_tier_takes_places_of_worse_ones(front: Front):
    front.add("p/0", card(max_queue=2))
    front.call(caller="a")
    worse = [front.call(caller="b", tier=1), front.call(caller="b", tier=1)]

    for _ in range(2):
        front.call(caller="a")
    with pytest.raises(QueueFull):
        front.call(caller="a")

    assert all(map(ended, worse))


def test_a_priority_takes_no_place_from_another_caller(front: Front):
    waiting = full(front, "a")

    with pytest.raises(QueueFull):
        front.call(caller="b", priority=1)

    assert not ended(waiting[0])


def test_a_full_front_gives_a_place_of_another_handlers_calls():
    front = Front.make(max_calls=4)
    front.add("p/0", card("a"), card("b"))
    front.call("a", caller="a")
    waiting = [front.call("a", caller="a") for _ in range(4)]

    front.call("b", caller="b")

    assert [ended(reader) for reader in waiting] == [False] * 3 + [True]


def test_a_call_in_a_full_front_takes_no_place_from_its_own_callers_calls_of_other_workers():
    front = Front.make(max_calls=4)
    front.add("p/0", card("a"))
    front.add("q/0", card("b"))
    waiting = [front.call("a", caller="a") for _ in range(5)][1:]
    front.call("b", caller="a")

    with pytest.raises(QueueFull):
        front.call("b", caller="a")
    assert not any(map(ended, waiting))
    front.call("b", caller="a", priority=1)

    assert [ended(reader) for reader in waiting] == [False] * 3 + [True]


# What is predicted.


def test_a_caller_with_little_is_told_of_a_shorter_wait(front: Front):
    full(front, *"aaaaaaaa", admission="predict")

    with pytest.raises(QueueFull) as greedy:
        front.call(caller="a")
    with pytest.raises(QueueFull) as refusal:
        front.call(caller="b", seconds=1)
    front.call(caller="b", seconds=6)

    assert greedy.value.retry_after >= 16
    assert refusal.value.retry_after <= 4


@pytest.mark.parametrize(
    ("had", "n_own", "n_ahead"), [(-1, 0, 0), (0, 0, 1), (0, 2, 5), (10, 2, 8), (-4, 2, 3), (-4, 6, 11), (100, 0, 6)]
)
def test_calls_of_others_are_ahead_until_those_have_had_as_much(front: Front, had: float, n_own: int, n_ahead: int):
    full(front, *("a" * 6 + "b" * n_own))
    queue = front.dispatcher._waiting.get("model:add:")
    assert queue is not None
    call = QueuedCall(front.job(caller="b"), queue.entry, queue.traffic, 100, front.clock.now)
    other = queue.entry.ledger.join("a")
    call.account.virtual_s = other.virtual_s + 1 + had  # of two seconds, what runs has one left

    assert queue.count_ahead(call, front.clock.now) == n_ahead


def test_calls_of_better_tiers_are_ahead_and_none_of_worse_ones(front: Front):
    front.add("p/0")
    for tier in (0, 0, 1, 2, 2, 2):
        front.call(caller=f"of tier {tier}", tier=tier)
    queue = front.dispatcher._waiting.get("model:add:")
    assert queue is not None

    counts = []
    for tier in (0, 1, 2):
        call = QueuedCall(front.job(caller="x", tier=tier), queue.entry, queue.traffic, 100, front.clock.now)
        counts.append(queue.count_ahead(call, front.clock.now))

    assert counts == [1, 2, 5]


def test_some_hundred_callers_stand_for_thousands(front: Front):
    full(front, *(f"caller {number}" for number in range(1000)))
    queue = front.dispatcher._waiting.get("model:add:")
    assert queue is not None

    call = QueuedCall(front.job(caller="new"), queue.entry, queue.traffic, 10_000, front.clock.now)

    assert queue.count_ahead(call, front.clock.now) == 1000


def calls_of_a_refusal(n_callers: int) -> int:
    """Counts the calls of functions that refusing a call takes where so many callers wait."""
    front = Front.make()
    full(front, *(f"caller {number}" for number in range(n_callers)))
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        for number in range(10):
            with pytest.raises(QueueFull):
                front.call(caller="new")
            if not number:
                events.clear()  # the first one counts what there is
    finally:
        sys.setprofile(None)
    return len(events)


def test_a_refusal_is_no_more_work_among_thousands_of_callers():
    assert calls_of_a_refusal(4000) < 1.1 * calls_of_a_refusal(50)


@pytest.mark.parametrize("seed", range(4))
def test_who_has_most_of_a_queue_is_known_while_calls_come_and_go(seed: int):
    chance, shares = random.Random(seed), CallerShares()
    accounts = [CallerAccount(name) for name in "aabbcdefgh"]  # some have one in each of two ledgers
    for account in accounts:
        account.tier, account.weight = account.caller > "d", 1 + ord(account.caller) % 3
    waiting: list[CallerAccount] = []
    for _ in range(2000):
        if waiting and chance.random() < 0.5:
            shares.add(waiting.pop(chance.randrange(len(waiting))), -1)
        else:
            waiting.append(chance.choice(accounts))
            shares.add(waiting[-1], 1)

        counts = Counter(account.caller for account in waiting)
        share = {a.caller: (a.tier, counts[a.caller] / a.weight) for a in waiting if a.caller != "a"}
        most = shares.most("a")
        assert {caller: shares.n_calls(caller) for caller in "abcdefgh"} == {c: counts[c] for c in "abcdefgh"}
        assert share[most] == max(share.values()) if share else most is None
