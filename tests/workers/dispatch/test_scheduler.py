"""Which worker gets a call: in turn, never one that drains, and how long one waits for the first of a pool."""

from __future__ import annotations

import pytest

from corosrv.base.errors import DeadlinePassed, NotHandedOver, WorkerLost
from corosrv.contracts.jobs.infer import CapabilityTarget, InferJob, InferRequest
from tests.workers.dispatch.hosts import Front, capability_card, card, ended, error_of, text


@pytest.fixture
def front() -> Front:
    return Front.make()


def test_workers_that_are_equally_loaded_take_turns(front: Front):
    hosts = [front.add(f"p/{i}") for i in range(3)]
    served = []

    for _ in range(6):
        front.call()
        host = next(host for host in hosts if host.calls)
        served.append(host.id)
        host.calls[0].finish()

    assert served == ["p/0", "p/1", "p/2"] * 2


def test_capabilities_that_match_alike_take_turns(front: Front):
    host = front.add("p/0", capability_card("a", type="t", x=1), capability_card("b", type="t", x=2))
    job = InferJob(CapabilityTarget({"type": "t", "x": {"exists": True}}), InferRequest())
    served = []

    for _ in range(4):
        front.dispatcher.submit(job)
        served.append(host.calls[0].call.handler)
        host.calls[0].finish()

    assert served == [0, 1, 0, 1]


@pytest.mark.parametrize("late", [0, 7])
def test_a_call_does_not_run_at_its_deadline_even_if_the_timer_is_late(front: Front, late: float):
    host = front.add("p/0")
    front.call()
    reader = front.call(seconds=3)

    front.clock.now += 3 + late  # and the alarm has not rung
    host.calls[0].finish()

    assert isinstance(error_of(reader), DeadlinePassed)
    assert host.n_started == 1


def test_a_call_that_was_refused_does_not_wait_for_a_worker_that_drains(front: Front):
    broken, draining, busy = front.add("p/0"), front.add("p/1"), front.add("p/2")
    front.call()
    front.call()
    front.call(request_id="other")
    draining.calls[0].finish()
    draining.drain()

    broken.calls[0].fail(NotHandedOver("the lane is closed"))
    busy.calls[0].finish()

    assert busy.n_started == 2


def test_a_retry_takes_the_first_free_worker_once_the_one_that_lost_it_has_left(front: Front):
    lost, first, second = (front.add(f"p/{i}", card(is_idempotent=True)) for i in range(3))
    for _ in range(3):
        front.call()
    lost.calls[0].fail(WorkerLost("it was lost"))
    front.dispatcher.remove_host(lost)
    front.clock.pass_time(0.05)
    assert front.key().depth == 1

    second.calls[0].finish()

    assert second.n_started == 2
    assert first.n_started == 1


def test_only_pools_that_can_start_are_told_that_a_call_waits(front: Front):
    needed: list[str] = []
    front.dispatcher.on_need(needed.append)
    front.dispatcher.expect("p", [card()], patience=20)
    front.dispatcher.expect("q", [card()], can_start=False, patience=500)

    reader = front.call()
    front.clock.pass_time(20)

    assert needed == ["p"]
    assert ended(reader)


def test_a_call_goes_on_waiting_once_its_first_worker_is_there(front: Front):
    front.dispatcher.expect("p", [card()], patience=20)
    front.call()
    waiting = front.call("add", text("n", b"1"))

    host = front.add("p/0")
    front.clock.pass_time(100)

    assert not ended(waiting)
    host.calls[0].finish()
    host.calls[0].finish()
    assert error_of(waiting) is None


def test_a_call_of_a_handler_to_a_pool_without_workers_waits_for_the_first(front: Front):
    front.dispatcher.expect("q", [card("b")])
    host = front.add("p/0", card("a"))
    front.call("a")

    reader = front.call("b", waiting_keys=host.calls[0].call.waiting_keys)

    front.add("q/0", card("b")).calls[0].finish()
    assert error_of(reader) is None


def test_a_server_without_calls_is_drained_at_once(front: Front):
    assert front.dispatcher.drain(timeout=0)


def test_a_drain_waits_for_every_call(front: Front):
    host = front.add("p/0", n_slots=2)
    front.call()
    front.call()
    host.calls[0].finish()

    assert not front.dispatcher.drain(timeout=0)

    host.calls[0].finish()
    assert front.dispatcher.drain(timeout=0)


@pytest.mark.parametrize(("n_before", "words"), [(0, "while it ran"), (1, "while it waited")])
def test_a_call_whose_time_is_over_says_where_it_was(front: Front, n_before: int, words: str):
    front.add("p/0")
    for _ in range(n_before):
        front.call()
    reader = front.call(seconds=3)

    front.clock.pass_time(3)

    assert str(error_of(reader)) == f"the call's time was over {words}"


def test_how_long_a_call_took_that_was_lost_says_nothing_of_others(front: Front):
    host = front.add("p/0", n_slots=2)
    front.call()
    front.call()
    front.clock.pass_time(5)

    host.calls[0].fail(WorkerLost("it was lost"))
    assert front.key().service_mean is None

    host.calls[0].finish()
    assert front.key().service_mean == 5
