"""Calls on their way through the dispatcher, with workers that are driven by hand."""

from __future__ import annotations

import gevent
import pytest

from corosrv.base.errors import (
    CallCancelled,
    Conflict,
    DeadlinePassed,
    HandlerFailed,
    NoCapacity,
    NotFound,
    NotHandedOver,
    NotOffered,
    QueueFull,
    ReadTimeout,
    Refused,
    ShuttingDown,
    Unavailable,
    WorkerLost,
)
from corosrv.contracts.jobs.infer import CapabilityTarget, InferEnd, InferJob, InferOutputs, InferRequest, ModelTarget
from corosrv.formats.tensors import TensorSpec
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from tests.workers.dispatch.hosts import (
    FakeCall,
    FakeHost,
    Front,
    capability_card,
    card,
    ended,
    error_of,
    outputs,
    read,
    text,
    texts,
)


@pytest.fixture
def front() -> Front:
    return Front.make()


# One call.


def test_a_call_runs_at_once_where_a_permit_is_free(front: Front):
    host = front.add("p/0")

    reader = front.call()

    assert len(host.calls) == 1
    host.calls[0].finish(outputs(text("out", b"2")))
    answer, end = read(reader)
    assert texts([answer]) == [b"2"]
    assert end == InferEnd(None)
    assert reader.is_finished
    assert reader.take() == []


def test_a_call_without_a_free_permit_waits_until_one_is(front: Front):
    host = front.add("p/0")
    front.call()
    second = front.call()
    assert len(host.calls) == 1

    host.calls[0].finish()

    assert len(host.calls) == 1
    host.calls[0].finish()
    assert error_of(second) is None
    assert host.permits.available == 1


def test_a_greenlet_that_takes_is_woken_by_the_answer(front: Front):
    host = front.add("p/0")
    reader = front.call()
    taking = gevent.spawn(reader.take)
    gevent.idle()

    host.calls[0].finish()

    assert len(taking.get(timeout=5)) == 2


def test_a_take_with_a_timeout_raises_and_the_reader_goes_on(front: Front):
    host = front.add("p/0")
    reader = front.call()

    with pytest.raises(ReadTimeout):
        reader.take(timeout=0.001)

    host.calls[0].finish()
    assert error_of(reader) is None


def test_unknown_models_are_not_found_while_every_handler_is_busy(front: Front):
    front.add("p/0")
    front.call()
    front.call()

    with pytest.raises(NotFound):
        front.call("sub")
    with pytest.raises(NotFound):
        front.call("add", version="3")
    with pytest.raises(NotFound):
        front.dispatcher.find(ModelTarget("sub"))


def test_a_call_goes_to_the_handler_of_its_card_whatever_else_matches(front: Front):
    host = front.add("p/0", capability_card("first", priority=1, type="t"), capability_card("second", type="t", b=1))
    target = CapabilityTarget({"type": "t"})
    chosen = front.dispatcher.find(target)
    assert chosen.name == "first"

    front.dispatcher.submit(InferJob(target, InferRequest(), card=host.handlers[1]))

    assert host.calls[0].call.handler == 1


def test_calls_of_alike_capabilities_are_given_in_rotation(front: Front):
    host = front.add("p/0", capability_card("a", type="t"), capability_card("b", type="t", x=1), n_slots=8)
    job = InferJob(CapabilityTarget({"type": ["t"], "x": {"ne": 2}}), InferRequest())
    other = front.add("p/1", capability_card("c", type="t", y=1), capability_card("d", type="t", z=1), n_slots=8)

    for _ in range(4):
        front.dispatcher.submit(job)

    # `a` and `b` name all of their attributes; of equals the one that was called longest ago is next.
    assert {call.call.handler for call in host.calls + other.calls} <= {0, 1}
    assert len(host.calls) == 4


def test_the_least_loaded_worker_gets_the_call_and_equals_take_turns(front: Front):
    first, second = front.add("p/0", n_slots=2), front.add("p/1", n_slots=4)

    for _ in range(3):
        front.call()
    assert (len(first.calls), len(second.calls)) == (1, 2)

    for _ in range(3):
        front.call()
    assert (len(first.calls), len(second.calls)) == (2, 4)


def test_a_handed_over_call_carries_its_terms(front: Front):
    host = front.add("p/0")

    front.call(
        seconds=5, request_id="r1", caller="c1", priority=2, owner="o", tier=3, weight=2.0,
        waiting_keys=("model:outer:",),
    )  # fmt: skip

    handed = host.calls[0].call
    item = handed.items[0]
    assert (item.deadline, item.request_id, item.caller, item.priority) == (front.clock.now + 5, "r1", "c1", 2)
    assert (item.owner, item.tier, item.weight) == ("o", 3, 2.0)
    assert handed.waiting_keys == ("model:outer:", "model:add:")
    assert handed.attempt == 1
    assert not handed.stream


def test_a_failure_of_the_handler_is_the_end(front: Front):
    host = front.add("p/0", card(is_idempotent=True))
    reader = front.call()

    host.calls[0].fail(HandlerFailed("it failed"))

    assert isinstance(error_of(reader), HandlerFailed)
    assert host.n_started == 1


# Order and bounds.


def test_waiting_calls_go_by_class_then_deadline_then_arrival(front: Front):
    host = front.add("p/0")
    front.call()
    late = front.call("add", text("n", b"late"), seconds=50)
    front.call("add", text("n", b"soon"), seconds=20)
    front.call("add", text("n", b"soon too"), seconds=20)
    front.call("add", text("n", b"first"), priority=1)
    front.call("add", text("n", b"last"), priority=9, seconds=5)

    order = []
    while host.calls:
        order += [tensor.data[0] for tensor in host.calls[0].call.items[0].request.inputs]
        host.calls[0].finish()

    assert order == [b"first", b"soon", b"soon too", b"late", b"last"]
    assert error_of(late) is None


def test_a_call_that_waits_rises_by_a_class_in_ten_seconds(front: Front):
    host = front.add("p/0")
    front.call()
    old = front.call(priority=6)
    front.clock.pass_time(20)
    front.call(priority=5)

    host.calls[0].finish()
    host.calls[0].finish()

    assert ended(old)


def test_the_declared_objective_orders_calls_without_deadlines(front: Front):
    host = front.add("p/0", card("slow", slo_ms=10_000), card("quick", slo_ms=100))
    front.call("slow")
    front.call("slow")
    front.call("quick")

    host.calls[0].finish()

    assert host.calls[0].call.handler == 1


def test_a_permit_goes_to_the_best_call_over_all_keys_of_its_group(front: Front):
    host = front.add("p/0", card("a"), card("b"))
    front.call("a")
    front.call("a", priority=5)
    front.call("b", priority=4)

    host.calls[0].finish()

    assert host.calls[0].call.handler == 1


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(front: Front):
    host = front.add("p/0", card(max_queue=2))
    front.call()
    front.clock.pass_time(8)
    host.calls[0].finish()
    front.call()
    front.call()
    front.call()

    with pytest.raises(QueueFull) as refusal:
        front.call()

    assert refusal.value.retry_after in (16, 17, 18)  # two calls of 8 s, and up to a tenth more
    assert front.key().outcomes["queue_full"] == 1


def test_what_is_told_of_a_full_queue_is_at_least_one_second_and_at_most_two_minutes(front: Front):
    host = front.add("p/0", card(max_queue=1))
    front.call()
    front.call()
    with pytest.raises(QueueFull) as early:
        front.call()
    front.clock.pass_time(1000)
    host.calls[0].finish()
    front.call()
    with pytest.raises(QueueFull) as late:
        front.call()

    assert early.value.retry_after == 1
    assert late.value.retry_after == 120


def test_the_calls_of_all_queues_are_bounded_together():
    front = Front.make(max_calls=3)
    front.add("p/0", card("a"), card("b"))
    for name in ("a", "b", "a", "b"):
        front.call(name)

    with pytest.raises(QueueFull, match="3 calls wait here"):
        front.call("a")


def test_the_tensors_of_waiting_calls_are_bounded_by_their_bytes():
    front = Front.make(max_bytes=2500)
    host = front.add("p/0")
    for _ in range(3):
        front.call("add", text("a", b"x" * 1000))

    with pytest.raises(QueueFull, match="2500 bytes"):
        front.call("add", text("a", b"x" * 1000))

    host.calls[0].finish()
    front.call("add", text("a", b"x" * 1000))
    assert front.dispatcher.stats().n_waiting_bytes == 2008
    front.call("add", text("a", b"x" * 488))  # fills it to the byte
    assert front.dispatcher.stats().n_waiting_bytes == 2500


def test_a_call_whose_predicted_wait_exceeds_its_deadline_is_refused_on_arrival(front: Front):
    host = front.add("p/0", card(admission="predict"))
    front.call()
    front.clock.pass_time(2)
    host.calls[0].finish()
    front.call()
    front.call(seconds=100)

    with pytest.raises(QueueFull, match="deadline"):
        front.call(seconds=3)
    front.call(seconds=4, priority=1)
    front.call(seconds=10)


def test_a_call_that_does_not_wait_is_refused_where_it_would_have_to(front: Front):
    front.add("p/0")
    front.call(waits=False)

    with pytest.raises(NoCapacity):
        front.call(waits=False)
    assert front.key().depth == 0


# Deadlines and cancels.


def test_a_call_that_waits_is_answered_at_its_deadline_and_never_runs(front: Front):
    host = front.add("p/0")
    front.call()
    reader = front.call(seconds=3)

    front.clock.pass_time(2.9)
    assert not ended(reader)
    front.clock.pass_time(0.1)

    assert isinstance(error_of(reader), DeadlinePassed)
    host.calls[0].finish()
    assert host.n_started == 1
    assert front.key().n_left == 1


def test_a_call_that_runs_is_answered_at_its_deadline_and_its_worker_is_told(front: Front):
    host = front.add("p/0")
    reader = front.call(seconds=3)

    front.clock.pass_time(3)

    assert isinstance(error_of(reader), DeadlinePassed)
    assert host.calls[0].cancels == [(-1, True)]
    host.calls[0].finish()  # too late, and told to nobody
    assert reader.take() == []


def test_a_call_that_arrives_too_late_is_refused(front: Front):
    host = front.add("p/0")

    with pytest.raises(DeadlinePassed):
        front.call(seconds=0)
    assert host.n_started == 0


def test_the_time_limit_of_the_handler_bounds_a_call_without_a_deadline(front: Front):
    front.add("p/0", card(timeout_ms=500))
    reader = front.call()

    front.clock.pass_time(0.5)

    assert isinstance(error_of(reader), DeadlinePassed)


def test_a_cancelled_call_leaves_its_queue_at_once_and_never_runs(front: Front):
    host = front.add("p/0")
    front.call()
    reader = front.call()

    reader.cancel()
    reader.cancel()

    assert front.key().depth == 0
    assert isinstance(error_of(reader), CallCancelled)
    host.calls[0].finish()
    assert host.n_started == 1


def test_closing_a_reader_cancels_what_runs(front: Front):
    host = front.add("p/0")

    with front.call() as reader:
        pass

    assert host.calls[0].cancels == [(-1, False)]
    assert reader.take() == []
    host.calls[0].finish()
    assert front.dispatcher.stats().n_calls == 0


def test_an_aborted_key_loses_its_waiting_calls_and_no_others(front: Front):
    host = front.add("p/0", card("a"), card("b"))
    running, waiting, other = front.call("a"), front.call("a"), front.call("b")

    assert front.dispatcher.abort("model:a:") == 1
    assert front.dispatcher.abort("model:unknown:") == 0

    error = error_of(waiting)
    assert isinstance(error, Unavailable)
    assert "aborted by operator" in str(error)
    host.calls[0].finish()
    host.calls[0].finish()
    assert error_of(running) is None
    assert error_of(other) is None


# Workers that come and go.


def test_a_call_waits_for_a_worker_that_its_pool_may_start(front: Front):
    needed: list[str] = []
    front.dispatcher.on_need(needed.append)
    front.dispatcher.expect("p", [card()])
    reader = front.call()
    assert needed == ["p"]

    host = front.add("p/0")

    host.calls[0].finish()
    assert error_of(reader) is None


def test_a_call_does_not_wait_for_ever_for_the_first_worker():
    front = Front.make(longest_start=20)
    front.dispatcher.expect("p", [card()])
    reader = front.call()

    front.clock.pass_time(20)

    assert isinstance(error_of(reader), Unavailable)


def test_a_pool_says_how_long_its_first_worker_may_take():
    front = Front.make(longest_start=20)
    front.dispatcher.expect("p", [card()], patience=70)
    reader = front.call()

    front.clock.pass_time(69)
    front.add("p/0").calls[0].finish()

    assert error_of(reader) is None


def test_without_a_worker_that_may_come_calls_are_unavailable_not_unknown(front: Front):
    host = front.add("p/0")
    front.dispatcher.remove_host(host)

    with pytest.raises(Unavailable) as refusal:
        front.call()
    assert refusal.value.retry_after

    front.clock.pass_time(60)
    with pytest.raises(NotFound):
        front.call()


def test_waiting_calls_are_refused_once_no_worker_will_come(front: Front):
    front.dispatcher.expect("p", [card()])
    reader = front.call()

    front.dispatcher.expect("p", [card()], can_start=False, reason="the pool p is crashlooping")

    assert "crashlooping" in str(error_of(reader))


def test_thousands_that_nobody_will_serve_are_refused_in_several_turns():
    front = Front.make()
    front.dispatcher.expect("p", [card(max_queue=1000)])
    readers = [front.call() for _ in range(600)]

    front.dispatcher.forget("p")
    n_refused = sum(map(ended, readers))
    front.clock.pass_time(0)

    assert 0 < n_refused < 600
    assert all(map(ended, readers))
    assert front.dispatcher.stats().n_waiting == 0


def test_a_draining_worker_gets_no_more_calls_and_loses_none(front: Front):
    front.dispatcher.expect("p", [card()])
    host = front.add("p/0")
    running, waiting = front.call(), front.call()

    host.drain()
    host.calls[0].finish()

    assert error_of(running) is None
    assert not ended(waiting)
    replacement = front.add("p/0", incarnation=2)
    replacement.calls[0].finish()
    assert error_of(waiting) is None


def test_calls_that_wait_for_a_draining_worker_without_a_successor_are_refused(front: Front):
    host = front.add("p/0")
    running, waiting = front.call(), front.call()

    host.drain()

    assert isinstance(error_of(waiting), Unavailable)
    assert not ended(running)


def test_a_host_that_was_removed_gets_nothing_more(front: Front):
    front.dispatcher.expect("p", [card()])
    host = front.add("p/0")
    front.call()
    waiting = front.call()

    assert front.dispatcher.remove_host(host)
    host.calls[0].finish()

    assert not ended(waiting)
    assert host.n_started == 1


def test_an_old_incarnation_that_changes_gets_nothing(front: Front):
    old = front.add("p/0")
    front.call()
    new = front.add("p/0", incarnation=2)
    front.call()
    front.call()

    old.calls[0].finish()

    assert old.n_started == 1
    assert len(new.calls) == 1
    assert not front.dispatcher.add_host(FakeHost("p/0", [card()], incarnation=1))


class HastyHost(FakeHost):
    """Ends each call while it is handed over."""

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        running = super().start_call(permit, call, listener)
        running.finish()
        return running


def test_a_worker_that_ends_calls_at_once_makes_no_deep_stack(front: Front):
    n_calls = 2000
    front.dispatcher.expect("p", [card(max_queue=n_calls)])
    readers = [front.call() for _ in range(n_calls)]

    front.dispatcher.add_host(HastyHost("p/0", [card(max_queue=n_calls)]))

    assert all(map(ended, readers))


def test_a_permit_that_is_added_takes_a_waiting_call(front: Front):
    host = front.add("p/0")
    front.call()
    front.call()

    host.permits.add(7)
    host.tell()

    assert len(host.calls) == 2


def test_standings_tell_what_can_be_called(front: Front):
    front.dispatcher.expect("q", [card("b")])
    front.dispatcher.expect("r", [card("c")], can_start=False, reason="stopped")
    front.add("p/0", card("a"))

    states = {standing.card.name: (standing.state, standing.reason) for standing in front.dispatcher.standings()}

    assert states == {"a": ("READY", ""), "b": ("LOADING", "no worker is ready"), "c": ("UNAVAILABLE", "stopped")}


# Failures and retries.


def test_a_lost_call_of_an_idempotent_handler_runs_once_more_after_a_pause(front: Front):
    lost = front.add("p/0", card(is_idempotent=True))
    reader = front.call()
    spare = front.add("p/1", card(is_idempotent=True))

    lost.die()
    assert not spare.calls
    front.clock.pass_time(0.05)

    assert spare.calls[0].call.attempt == 2
    spare.calls[0].finish()
    assert error_of(reader) is None
    assert front.key().retries == {"worker_lost": 1}


def test_a_call_runs_at_most_twice(front: Front):
    hosts = [front.add(f"p/{i}", card(is_idempotent=True)) for i in range(3)]
    reader = front.call()

    for _ in range(2):
        next(host for host in hosts if host.calls).die()
        front.clock.pass_time(1)

    assert isinstance(error_of(reader), WorkerLost)
    assert sum(host.n_started for host in hosts) == 2


def test_a_call_of_a_handler_that_is_not_idempotent_starts_once(front: Front):
    lost, spare = front.add("p/0"), front.add("p/1")
    reader = front.call()

    lost.die()
    spare.die()
    front.clock.pass_time(10)

    assert isinstance(error_of(reader), WorkerLost)
    assert lost.n_started + spare.n_started == 1


def test_a_stream_that_has_sent_something_is_never_started_again(front: Front):
    lost, spare = (front.add(f"p/{i}", card(is_idempotent=True, is_stream=True)) for i in range(2))
    reader = front.call(stream=True)
    lost.calls[0].send(outputs(text("out", b"1")))

    lost.die()
    front.clock.pass_time(10)

    assert isinstance(error_of(reader), WorkerLost)
    assert spare.n_started == 0


def test_a_stream_that_has_sent_nothing_may_be_started_again(front: Front):
    lost, spare = (front.add(f"p/{i}", card(is_idempotent=True, is_stream=True)) for i in range(2))
    front.call(stream=True)

    lost.die()
    front.clock.pass_time(10)

    assert spare.n_started == 1


def test_a_unary_answer_that_was_lost_half_way_is_not_mixed_with_the_next(front: Front):
    joins = card(is_idempotent=True, is_stream=True, unary="join")
    lost, spare = front.add("p/0", joins), front.add("p/1", joins)
    reader = front.call()
    lost.calls[0].send(outputs(text("text_output", b"half")))

    lost.die()
    front.clock.pass_time(1)
    spare.calls[0].finish(outputs(text("text_output", b"all")))

    assert texts(read(reader)) == [b"all"]


def test_no_attempt_begins_after_the_deadline(front: Front):
    lost, spare = (front.add(f"p/{i}", card(is_idempotent=True)) for i in range(2))
    reader = front.call(seconds=0.05)

    lost.die()

    assert isinstance(error_of(reader), WorkerLost)
    assert spare.n_started == 0


@pytest.mark.parametrize("when", ["paused", "waiting"])
def test_a_call_that_may_have_run_is_never_called_unavailable(front: Front, when: str):
    front.dispatcher.expect("p", [card(is_idempotent=True)])
    host = front.add("p/0", card(is_idempotent=True))
    reader = front.call()
    host.die()
    front.dispatcher.remove_host(host)
    if when == "waiting":
        front.clock.pass_time(1)
        assert front.key().depth == 1

    front.dispatcher.expect("p", [card(is_idempotent=True)], can_start=False, reason="crashlooping")
    front.clock.pass_time(1)

    assert isinstance(error_of(reader), WorkerLost)


def test_a_paused_call_can_be_cancelled(front: Front):
    lost, spare = (front.add(f"p/{i}", card(is_idempotent=True)) for i in range(2))
    reader = front.call()
    lost.die()

    reader.cancel()
    front.clock.pass_time(1)

    assert isinstance(error_of(reader), CallCancelled)
    assert spare.n_started == 0


def test_one_caller_has_so_many_calls_and_leaves_others_theirs(front: Front):
    front = Front.make(calls_per_caller=2)
    host = front.add("p/0")
    runs, waits = (front.call(caller="greedy") for _ in range(2))

    with pytest.raises(QueueFull, match="2 of at most 2 calls of this API key"):
        front.call(caller="greedy")
    front.call(caller="modest")
    for _ in range(3):
        front.call()
    front.call(caller="greedy", waiting_keys=("model:other:",))

    waits.cancel()
    front.call(caller="greedy")
    host.calls[0].finish()
    assert error_of(runs) is None
    front.call(caller="greedy")
    with pytest.raises(QueueFull):
        front.call(caller="greedy")


def test_retries_stop_when_their_budget_is_spent(front: Front):
    front.dispatcher.expect("p", [card(is_idempotent=True)])
    n_calls = 100
    readers = []
    for i in range(n_calls):
        host = front.add("p/0", card(is_idempotent=True), incarnation=i + 1, n_slots=1)
        readers.append(front.call(priority=1) if not host.calls else front.call())
        host.die()

    assert front.key().retries["worker_lost"] == 30 + n_calls // 10
    assert front.dispatcher.stats().retry_budget < 1


def test_the_calls_of_one_dead_worker_wait_for_permits_of_another_and_cost_one_retry(front: Front):
    n_calls = 100
    lost = front.add("p/0", card(is_idempotent=True), n_slots=n_calls)
    readers = [front.call() for _ in range(n_calls)]
    spare = front.add("p/1", card(is_idempotent=True), n_slots=2)
    left = front.dispatcher.stats().retry_budget

    lost.die()
    front.dispatcher.remove_host(lost)
    front.clock.pass_time(1)
    assert (len(spare.calls), front.key().depth) == (2, n_calls - 2)
    while spare.calls:
        spare.calls[0].finish()

    assert [error_of(reader) for reader in readers] == [None] * n_calls
    assert front.dispatcher.stats().retry_budget == left - 1


def test_a_call_that_could_not_be_handed_over_goes_to_another_worker_whatever_its_handler(front: Front):
    broken, spare = front.add("p/0"), front.add("p/1")
    reader = front.call()

    broken.calls[0].fail(NotHandedOver("the lane is closed"))

    assert spare.calls[0].call.attempt == 1
    spare.calls[0].finish()
    assert error_of(reader) is None


def test_a_worker_that_takes_nothing_does_not_keep_a_call_for_ever(front: Front):
    broken = front.add("p/0")
    reader = front.call()

    while broken.calls:
        broken.calls[0].fail(NotHandedOver("the lane is closed"))
        front.clock.pass_time(1)

    assert isinstance(error_of(reader), NotHandedOver)
    assert broken.n_started == 6


def test_a_call_that_two_workers_refused_waits_longer_before_each_try(front: Front):
    broken = front.add("p/0")
    front.call()
    broken.calls[0].fail(NotHandedOver("the lane is closed"))
    for pause in (0.05, 0.1, 0.2):
        broken.calls[0].fail(NotHandedOver("the lane is closed"))

        front.clock.pass_time(pause - 0.001)
        assert not broken.calls
        front.clock.pass_time(0.002)
        assert broken.calls


def test_a_retry_avoids_the_worker_that_lost_it_while_there_is_another(front: Front):
    options = {"is_idempotent": True}
    broken, other = front.add("p/0", card(**options), n_slots=2), front.add("p/1", card(**options))
    reader = front.call()
    front.call()  # on the other one
    broken.calls[0].fail(WorkerLost("one lane broke"))
    front.clock.pass_time(5)
    assert len(broken.calls) == 0

    other.calls[0].finish()

    assert other.calls[0].call.attempt == 2
    other.calls[0].finish()
    assert error_of(reader) is None


# Answers.


def test_a_stream_is_passed_on_as_it_comes(front: Front):
    host = front.add("p/0", card(is_stream=True))
    reader = front.call(stream=True)

    host.calls[0].send(outputs(text("out", b"1")))
    assert texts(read(reader)) == [b"1"]
    host.calls[0].send(outputs(text("out", b"2")))
    host.calls[0].end(0)

    items = read(reader)
    assert texts(items) == [b"2"]
    assert items[-1] == InferEnd(None)
    assert host.n_started == 1


def test_the_only_answer_of_a_unary_handler_is_final_also_in_a_stream(front: Front):
    host = front.add("p/0")
    reader = front.call(stream=True)
    assert not host.calls[0].call.stream

    host.calls[0].finish(outputs(text("out", b"1")))

    answer = read(reader)[0]
    assert isinstance(answer, InferOutputs)
    assert answer.is_final


def test_a_handler_waits_while_its_client_does_not_read(front: Front):
    host = front.add("p/0", card(is_stream=True))
    reader = front.call(stream=True)
    listener = host.calls[0].listener
    host.calls[0].send(outputs(text("out", b"1")), n_bytes=2 << 20)
    waiting = gevent.spawn(listener.wait_for_room)
    gevent.idle()
    assert not waiting.ready()

    read(reader)

    waiting.get(timeout=5)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_handler_does_not_wait_for_a_client_whose_call_has_ended(front: Front, how: str):
    host = front.add("p/0", card(is_stream=True))
    reader = front.call(stream=True, seconds=5)
    host.calls[0].send(outputs(text("out", b"1")), n_bytes=2 << 20)
    waiting = gevent.spawn(host.calls[0].listener.wait_for_room)
    gevent.idle()

    if how == "cancel":
        reader.cancel()
    else:
        front.clock.pass_time(5)

    waiting.get(timeout=5)


def test_a_unary_call_of_a_streaming_handler_joins_its_texts(front: Front):
    host = front.add("p/0", card(is_stream=True, unary="join"))
    reader = front.call()
    for piece in (b"Hel", b"lo"):
        host.calls[0].send(outputs(text("text_output", piece), text("other", piece)))
    host.calls[0].end(0)

    answer, end = read(reader)
    assert isinstance(answer, InferOutputs)
    assert {tensor.name: tensor.data for tensor in answer.outputs} == {"text_output": [b"Hello"], "other": [b"lo"]}
    assert end == InferEnd(None)


def test_a_unary_call_of_a_streaming_handler_takes_its_last_answer(front: Front):
    host = front.add("p/0", card(is_stream=True, unary="last"))
    reader = front.call()
    for piece in (b"1", b"2"):
        host.calls[0].send(outputs(text("out", piece)))
    host.calls[0].end(0)

    assert texts(read(reader)) == [b"2"]


def test_a_unary_call_of_a_handler_that_only_streams_is_not_offered(front: Front):
    host = front.add("p/0", card(is_stream=True))

    with pytest.raises(NotOffered):
        front.call()
    assert host.n_started == 0


def test_a_handler_that_gives_no_answer_has_failed(front: Front):
    host = front.add("p/0")
    reader = front.call()

    host.calls[0].end(0)

    assert isinstance(error_of(reader), HandlerFailed)


def test_a_call_gets_the_outputs_that_it_names_in_their_order(front: Front):
    host = front.add("p/0")
    reader = front.call(names=["b", "a"])

    host.calls[0].finish(outputs(text("a", b"1"), text("b", b"2"), text("c", b"3")))

    assert texts(read(reader)) == [b"2", b"1"]


def test_unknown_outputs_are_refused_before_the_handler_runs_if_it_declares_them(front: Front):
    host = front.add("p/0", card(outputs=[TensorSpec("a", "BYTES", [1])]))

    with pytest.raises(Refused, match="no output 'b'"):
        front.call(names=["b"])
    with pytest.raises(Refused, match="twice"):
        front.call(names=["a", "a"])
    assert host.n_started == 0


def test_unknown_outputs_of_a_handler_without_declarations_are_refused_with_its_answer(front: Front):
    host = front.add("p/0")
    reader = front.call(names=["b"])

    host.calls[0].finish(outputs(text("a", b"1")))

    assert isinstance(error_of(reader), Refused)


def test_an_output_that_is_declared_and_missing_is_a_failure_of_the_handler(front: Front):
    host = front.add("p/0", card(outputs=[TensorSpec("a", "BYTES", [1])]))
    reader = front.call(names=["a"])

    host.calls[0].finish(outputs(text("b", b"1")))

    assert isinstance(error_of(reader), HandlerFailed)


def test_an_answer_without_a_declared_output_fails_if_all_were_asked_for_and_it_is_not_optional(front: Front):
    specs = [TensorSpec("a", "BYTES", [1]), TensorSpec("b", "BYTES", [1]), TensorSpec("c", "BYTES", [1], optional=True)]
    host = front.add("p/0", card(outputs=specs))
    whole, partial = front.call(), front.call(names=["a"])

    host.calls[0].finish(outputs(text("a", b"1")))
    host.calls[0].finish(outputs(text("a", b"1")))

    error = error_of(whole)
    assert isinstance(error, HandlerFailed)
    assert "'b'" in str(error)
    assert texts(read(partial)) == [b"1"]


def test_the_last_piece_of_a_stream_may_lack_declared_outputs(front: Front):
    specs = [TensorSpec("a", "BYTES", [1]), TensorSpec("b", "BYTES", [1])]
    host = front.add("p/0", card(outputs=specs, is_stream=True, unary="last"))
    reader = front.call()

    host.calls[0].finish(outputs(text("a", b"1")))

    assert texts(read(reader)) == [b"1"]


# Chains.


def test_a_call_that_would_wait_for_its_own_callers_is_refused(front: Front):
    host = front.add("p/0", card("a"), card("b"))
    front.call("a")

    with pytest.raises(Conflict, match="hold them all") as refusal:
        front.call("b", waiting_keys=host.calls[0].call.waiting_keys)

    assert refusal.value.code == "cycle"
    assert front.key("model:b:").depth == 0


def test_a_call_may_wait_where_others_hold_permits_too(front: Front):
    host = front.add("p/0", n_slots=2)
    front.call()
    front.call()

    front.call(waiting_keys=host.calls[0].call.waiting_keys)

    assert front.key().depth == 1


def test_a_chain_ends_at_its_eighth_call(front: Front):
    front.add("p/0", n_slots=20)
    front.call(waiting_keys=("model:x:",) * 7)

    with pytest.raises(Conflict) as refusal:
        front.call(waiting_keys=("model:x:",) * 8)

    assert refusal.value.code == "cycle"


# Sessions.


def test_a_session_stays_with_its_worker(front: Front):
    hosts = [front.add(f"p/{i}", n_slots=2) for i in range(3)]
    front.call(session="s")
    home = next(host for host in hosts if host.calls)
    home.calls[0].finish()
    front.call()  # makes another one the least loaded

    front.call(session="s")

    assert home.n_started in (2, 3)
    assert home.calls


def test_a_call_of_a_session_waits_a_little_for_its_worker_and_then_takes_another(front: Front):
    home = front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")

    reader = front.call(session="s")
    assert not other.calls
    front.clock.pass_time(0.199)
    assert not other.calls
    front.clock.pass_time(0.01)

    other.calls[0].finish()
    assert error_of(reader) is None
    assert home.n_started == 1


def test_a_call_of_a_session_is_not_stolen_before_its_time(front: Front):
    front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")
    front.call()  # on the other one
    front.call(session="s")
    front.clock.pass_time(0.1)

    other.calls[0].finish()

    assert not other.calls
    front.clock.pass_time(0.11)
    assert len(other.calls) == 1


def test_a_worker_that_frees_up_in_time_serves_its_session(front: Front):
    home = front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")
    front.call(session="s")

    home.calls[0].finish()

    assert home.n_started == 2
    assert other.n_started == 0


def test_at_most_four_calls_wait_for_one_worker(front: Front):
    front.add("p/0")
    front.call(session="s")
    other = front.add("p/1", n_slots=9)

    for _ in range(6):
        front.call(session="s")

    assert len(other.calls) == 2
    assert front.key().depth == 4


def test_the_last_of_a_local_queue_is_stolen_first(front: Front):
    home = front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")
    front.call()  # on the other one
    for name in (b"1", b"2"):
        front.call("add", text("n", name), session="s")
    front.clock.pass_time(1)
    assert front.key().depth == 2

    other.calls[0].finish()

    assert other.calls[0].call.items[0].request.inputs[0].data == [b"2"]
    home.calls[0].finish()
    assert home.calls[0].call.items[0].request.inputs[0].data == [b"1"]


def test_work_that_waits_for_a_lost_worker_returns_to_its_key_with_its_order(front: Front):
    home = front.add("p/0")
    front.call(session="s")
    other = front.add("p/1")
    front.call()  # on the other one
    first = front.call(session="s")
    second = front.call()

    front.dispatcher.remove_host(home)
    other.calls[0].finish()
    other.calls[0].finish()

    assert ended(first)
    assert not ended(second)
    assert front.key().depth == 0


def test_sessions_of_different_callers_are_different(front: Front):
    front.add("p/0")
    front.call(session="s", caller="x")
    other = front.add("p/1")

    front.call(session="s", caller="y")

    assert len(other.calls) == 1


# The end.


def test_a_server_that_shuts_down_refuses_new_calls_and_ends_the_others(front: Front):
    host = front.add("p/0")
    running, waiting = front.call(), front.call()
    draining = gevent.spawn(front.dispatcher.drain, 60)
    gevent.idle()

    with pytest.raises(ShuttingDown):
        front.call()
    host.calls[0].finish()
    host.calls[0].finish()

    assert draining.get(timeout=5)
    assert error_of(running) is None
    assert error_of(waiting) is None


def test_what_has_not_ended_in_time_is_cancelled(front: Front):
    host = front.add("p/0")
    running, waiting = front.call(), front.call()

    assert not front.dispatcher.drain(0.001)
    front.dispatcher.close()

    assert isinstance(error_of(running), WorkerLost)  # it may have run, which Unavailable denies
    assert isinstance(error_of(waiting), ShuttingDown)
    assert host.calls[0].cancels
    assert front.dispatcher.drain(0)


def test_deadlines_are_kept_by_the_hub():
    dispatcher = Dispatcher()
    host = FakeHost("p/0", [card(timeout_ms=20)])
    dispatcher.add_host(host)

    reader = dispatcher.submit(InferJob(ModelTarget("add"), InferRequest()))

    items = reader.take(timeout=5)
    assert isinstance(items[0], InferEnd)
    assert isinstance(items[0].error, DeadlinePassed)
    dispatcher.close()


def test_a_call_from_within_the_end_of_another_overtakes_none_that_waits(front: Front):
    host = front.add("p/0")
    first, _ = front.call(), front.call(request_id="waits")
    first.on_news(lambda: front.call(request_id="late"))

    host.calls[0].fail(HandlerFailed("no"))

    assert [item.request_id for call in host.calls for item in call.call.items] == ["waits"]
    assert front.key().depth == 1
