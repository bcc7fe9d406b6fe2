"""Sessions: which worker their calls prefer, and what waits for one worker alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corosrv.base.errors import NotHandedOver, NoWorker, QueueFull, WorkerLost
from corosrv.contracts.jobs.infer import BatchLimits
from corosrv.workers.dispatch.host import LaneGroup, PermitPool
from tests.workers.dispatch.hosts import FakeHost, Front, card, ended, error_of, text


@pytest.fixture
def front() -> Front:
    return Front.make()


def host_of_two(front: Front, id: str) -> FakeHost:
    """Adds a worker whose handlers `a` and `b` have one slot each."""
    host = FakeHost(id, [card("a"), card("b")])
    host.groups = [LaneGroup((0,), PermitPool([0])), LaneGroup((1,), PermitPool([1]))]
    assert front.dispatcher.add_host(host)
    return host


def names(host: FakeHost) -> list[bytes]:
    return [call.call.items[0].request.inputs[0].data[0] for call in host.calls]


def test_calls_of_no_session_prefer_no_worker(front: Front):
    front.add("p/0")
    front.call()
    other = front.add("p/1")

    front.call()

    assert len(other.calls) == 1


def test_handlers_of_batches_have_no_sessions(front: Front):
    batches = card(batch=BatchLimits(4, 0))
    front.add("p/0", batches)
    front.call(session="s")
    other = front.add("p/1", batches)

    front.call(session="s")

    assert len(other.calls) == 1


def test_a_slot_takes_no_call_of_its_workers_other_handlers(front: Front):
    home = host_of_two(front, "p/0")
    front.call("a", session="s")
    front.call("a", session="s")
    front.call("b")
    front.call("b")

    home.groups[1].permits.add(2)
    home.tell()

    assert [call.call.handler for call in home.calls] == [0, 1, 1]


def test_a_slot_steals_no_call_of_handlers_that_it_does_not_serve(front: Front):
    front.add("p/0", card("a"))
    front.call("a", session="s")
    front.call("a", session="s")
    front.clock.pass_time(1)

    other = front.add("p/1", card("b"))
    front.call("b")
    front.call("b")

    other.calls[0].finish()

    assert other.n_started == 2
    assert (front.key("model:a:").depth, front.key("model:b:").depth) == (1, 0)


def test_a_fifth_call_waits_for_any_worker(front: Front):
    front.add("p/0")
    front.call(session="s")
    for name in b"12345":
        front.call("add", text("n", b"%c" % name), session="s")

    other = front.add("p/1")

    assert names(other) == [b"5"]
    assert front.key().depth == 4


def test_a_call_of_a_session_for_which_there_is_no_room_takes_another_worker_at_once():
    front = Front.make(max_calls=0)
    front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")

    front.call(session="s")

    assert len(other.calls) == 1


def test_an_abort_leaves_calls_of_other_keys_that_wait_for_one_worker(front: Front):
    front.add("p/0", card("a"), card("b"))
    front.call("a", session="s")
    front.call("b")
    front.call("a", session="s")

    assert front.dispatcher.abort("model:b:") == 1

    assert (front.key("model:a:").depth, front.key("model:b:").depth) == (1, 0)
    assert front.dispatcher.abort("model:a:") == 1


def poison_its_slot(host: FakeHost) -> None:
    host.permits.poison(0, "hung")
    host.tell()


@pytest.mark.parametrize("leave", [FakeHost.drain, poison_its_slot], ids=["drains", "is poisoned"])
def test_work_that_waits_for_a_worker_that_takes_no_more_goes_to_another_at_once(
    front: Front, leave: Callable[[FakeHost], None]
):
    home = front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")
    front.call(session="s")
    assert not other.calls

    leave(home)

    assert len(other.calls) == 1


def test_every_call_that_may_be_stolen_is_while_workers_are_free(front: Front):
    front.add("p/0")
    front.call(session="s")
    others = [front.add("p/1"), front.add("p/2")]
    front.call(session="s")
    front.call(session="s")
    assert not any(other.calls for other in others)

    front.clock.pass_time(0.2)

    assert [len(other.calls) for other in others] == [1, 1]


def test_a_call_that_was_refused_waits_for_no_worker_that_four_wait_for(front: Front):
    front.add("p/0")
    front.call(session="s")
    refusing = front.add("p/1")
    front.call()
    for _ in range(4):
        front.call(session="s")

    refusing.calls[0].fail(NotHandedOver("the lane is closed"))

    assert refusing.n_started == 2


# Calls that one worker alone may run.


def numbers(host: FakeHost) -> list[bytes]:
    """Returns what the calls say that a worker has run, one by one."""
    said = []
    while host.calls:
        said += names(host)
        host.calls[0].finish()
    return said


def test_calls_that_one_worker_alone_may_run_wait_for_it_in_their_order_beside_a_free_one(front: Front):
    only, other = front.add("p/0"), front.add("p/1")
    for number in range(12):
        front.call("add", text("n", b"%d" % number), only_host="p/0", priority=1 if number == 11 else 5)
    front.clock.pass_time(5)
    assert (len(only.calls), len(other.calls)) == (1, 0)
    assert front.key().depth == 11

    front.call("add", text("n", b"any"))

    assert names(other) == [b"any"]
    assert numbers(only) == [b"0", b"11", *(b"%d" % number for number in range(1, 11))]
    assert other.n_started == 1


def test_a_call_that_any_worker_may_run_is_no_later_than_those_of_one_worker_that_came_after_it(front: Front):
    only = front.add("p/0")
    front.call("add", text("n", b"runs"))
    front.call("add", text("n", b"any"))
    front.call("add", text("n", b"only"), only_host="p/0")

    assert numbers(only) == [b"runs", b"any", b"only"]


def test_calls_that_wait_for_their_only_worker_count_for_the_bounds_of_the_queue():
    front = Front.make(max_calls=3)
    front.add("p/0")
    front.add("p/1")
    for _ in range(4):
        front.call(only_host="p/0")

    with pytest.raises(QueueFull) as refused:
        front.call(only_host="p/0")

    assert refused.value.retry_after
    assert front.key().depth == 3


@pytest.mark.parametrize("leave", [FakeHost.drain, poison_its_slot], ids=["drains", "is poisoned"])
def test_calls_whose_only_worker_takes_no_more_are_refused_and_run_nowhere_else(
    front: Front, leave: Callable[[FakeHost], None]
):
    only, other = front.add("p/0"), front.add("p/1")
    front.call(only_host="p/0")
    waiting = front.call(only_host="p/0")

    leave(only)

    assert isinstance(error_of(waiting), NoWorker)
    assert not other.calls
    with pytest.raises(NoWorker):
        front.call(only_host="p/0")


def test_a_call_waits_for_its_only_worker_while_a_pool_of_that_name_may_start_it(front: Front):
    other = front.add("p/1")
    front.dispatcher.expect("p/0", [card()], patience=20)
    given_up = front.call(only_host="p/0")
    front.clock.pass_time(20)
    assert isinstance(error_of(given_up), NoWorker)
    waiting = front.call(only_host="p/0")

    only = front.add("p/0")
    front.clock.pass_time(100)

    assert not ended(waiting)
    assert (len(only.calls), len(other.calls)) == (1, 0)


def test_a_call_that_its_only_worker_has_lost_runs_there_again(front: Front):
    only = front.add("p/0", card(is_idempotent=True))
    other = front.add("p/1", card(is_idempotent=True))
    reader = front.call(only_host="p/0")

    only.calls[0].fail(WorkerLost("the answer did not come"))
    front.clock.pass_time(5)
    only.calls[0].finish()

    assert error_of(reader) is None
    assert (only.n_started, other.n_started) == (2, 0)
