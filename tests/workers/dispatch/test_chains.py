"""Calls that handlers make of each other, in several chains at once."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Conflict
from corosrv.contracts.jobs.infer import BatchLimits
from tests.workers.dispatch.hosts import FakeCall, Front, card, error_of


@pytest.fixture
def front() -> Front:
    return Front.make()


def asker_of(call: FakeCall) -> dict[str, object]:
    """Returns the terms of a call that the handler of this one makes."""
    return {"asker": call.call.number, "waiting_keys": call.call.waiting_keys}


def test_calls_of_two_chains_that_would_wait_for_each_other_are_refused(front: Front):
    a, b = front.add("p/0", card("a")), front.add("q/0", card("b"))
    front.call("a")
    front.call("b")
    waiting = front.call("b", **asker_of(a.calls[0]))

    with pytest.raises(Conflict, match="would wait for ever") as refusal:
        front.call("a", **asker_of(b.calls[0]))

    assert refusal.value.code == "cycle"
    b.calls[0].fail(refusal.value)
    b.calls[0].finish()
    assert error_of(waiting) is None


def test_a_circle_of_three_is_found_and_one_free_permit_breaks_it(front: Front):
    hosts = [front.add(f"{name}/0", card(name)) for name in "abc"]
    for name in "abc":
        front.call(name)
    front.call("b", **asker_of(hosts[0].calls[0]))
    front.call("c", **asker_of(hosts[1].calls[0]))

    with pytest.raises(Conflict):
        front.call("a", **asker_of(hosts[2].calls[0]))
    front.add("a/1", card("a"))
    front.call("a", **asker_of(hosts[2].calls[0]))


def test_a_call_may_wait_for_a_holder_that_waits_for_nobody(front: Front):
    a, b = front.add("p/0", card("a"), n_slots=2), front.add("q/0", card("b"))
    front.call("a")
    front.call("a")
    front.call("b")
    front.call("b", **asker_of(a.calls[0]))

    front.call("a", **asker_of(b.calls[0]))

    assert front.key("model:a:").depth == 1


def test_a_call_may_wait_for_a_holder_that_waits_for_one_who_goes_on(front: Front):
    a, b = front.add("p/0", card("a"), n_slots=2), front.add("q/0", card("b"))
    front.add("r/0", card("c"))
    for name in "aabc":
        front.call(name)
    front.call("b", **asker_of(a.calls[0]))
    front.call("c", **asker_of(a.calls[1]))

    front.call("a", **asker_of(b.calls[0]))

    assert front.key("model:a:").depth == 1


def test_a_circle_through_a_call_that_runs_is_found(front: Front):
    a, b, c = (front.add(f"{name}/0", card(name)) for name in "abc")
    front.call("a")
    front.call("b", **asker_of(a.calls[0]))
    front.call("c")
    front.call("c", **asker_of(b.calls[0]))

    with pytest.raises(Conflict, match="would wait for ever"):
        front.call("a", **asker_of(c.calls[0]))


def test_a_call_that_gathers_for_a_batch_beside_a_free_permit_waits_for_nobody(front: Front):
    a = front.add("p/0", card("a"))
    b = front.add("q/0", card("b", batch=BatchLimits(3, 1000)), n_slots=2)
    for _ in range(30):  # so often that it pays to wait for another
        front.call("b").cancel()
        front.clock.pass_time(0.001)
    b.calls[1].finish()
    front.call("a")
    front.call("b", **asker_of(a.calls[0]))
    assert front.key("model:b:").depth == 1

    front.call("a", **asker_of(b.calls[0]))

    assert front.key("model:a:").depth == 1


def test_calls_that_have_ended_leave_no_chain(front: Front):
    a = front.add("p/0", card("a"))
    front.add("q/0", card("b"))
    front.call("a")
    front.call("b")
    front.call("b", **asker_of(a.calls[0])).cancel()
    a.calls[0].finish()

    assert front.dispatcher._lives.asks == {}
    assert all(
        not group.running for entry in front.dispatcher._registry for group in entry.groups if entry.card.name == "a"
    )
