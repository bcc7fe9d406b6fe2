"""Calls that are handed over together."""

from __future__ import annotations

import math

import pytest

from corosrv.base.errors import CallRefused, CorosrvError, DeadlinePassed, HandlerFailed, NoCapacity, WorkerLost
from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard, InferRequest
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.key_queue import MAX_SIGNATURES, ArrivalGaps, ready_at, signature_of
from tests.workers.dispatch.hosts import FakeHost, Front, card, ended, error_of, outputs, read, text, texts

LIMITS = BatchLimits(max_size=4, max_delay_ms=100)


@pytest.fixture
def front() -> Front:
    return Front.make()


def batching(max_size: int = 4, max_delay_ms: float = 100, **options: object) -> HandlerCard:
    return card(batch=BatchLimits(max_size, max_delay_ms), **options)


def busy_host(front: Front, **options: object) -> FakeHost:
    """Adds a worker whose only slot is taken."""
    host = front.add("p/0", batching(**options))
    front.call("add", text("other", b"0"))
    return host


def elements(host: FakeHost) -> list[bytes]:
    return [item.request.inputs[0].data[0] for item in host.calls[0].call.items]


# When a batch is ready.


@pytest.mark.parametrize(
    ("n_waiting", "oldest", "earliest", "is_another_likely", "at"),
    [
        (4, 10.0, math.inf, True, -math.inf),
        (1, 10.0, math.inf, False, -math.inf),
        (1, 10.0, math.inf, True, 10.1),
        (3, 10.0, 10.05, True, 10.04),
        (3, 10.0, 10.5, True, 10.1),
    ],
)
def test_a_batch_starts_full_or_after_its_delay_or_before_the_earliest_deadline(
    n_waiting: int, oldest: float, earliest: float, is_another_likely: bool, at: float
):
    assert ready_at(LIMITS, n_waiting, oldest, earliest, 0.01, is_another_likely) == pytest.approx(at)


def test_another_call_is_likely_once_some_came_fast_and_not_after_they_stopped():
    gaps = ArrivalGaps()
    assert not gaps.is_another_likely(0.1)
    gaps.add(0, 0.1)
    assert not gaps.is_another_likely(0.1)
    for number in range(20):
        gaps.add(1 + number * 0.01, 0.1)
    assert gaps.is_another_likely(0.1)
    for number in range(20):
        gaps.add(10 + number * 5, 0.1)
    assert not gaps.is_another_likely(0.1)


def test_the_batch_dimension_is_all_that_may_differ():
    def signature(*inputs: Tensor) -> object:
        return signature_of(InferRequest(inputs))

    base = signature(Tensor("a", "INT32", [1, 2], [1, 2]))

    assert signature(Tensor("a", "INT32", [2, 2], [1, 2, 3, 4])) == base
    assert signature(Tensor("b", "INT32", [1, 2], [1, 2])) != base
    assert signature(Tensor("a", "INT64", [1, 2], [1, 2])) != base
    assert signature(Tensor("a", "INT32", [1, 1], [1])) != base
    assert signature(Tensor("a", "INT32", [1], [1])) != signature(Tensor("a", "INT32", [], [1]))


# Batches on their way.


def test_calls_that_wait_are_handed_over_together(front: Front):
    host = busy_host(front)
    for name in (b"1", b"2", b"3"):
        front.call("add", text("a", name))

    host.calls[0].finish()

    assert elements(host) == [b"1", b"2", b"3"]
    assert front.key().batch_sizes.cumulative[2] == ("4", 2)


def test_a_batch_has_at_most_its_size_and_goes_by_priority(front: Front):
    host = busy_host(front, max_size=2)
    for name, priority in ((b"1", 5), (b"2", 9), (b"3", 1)):
        front.call("add", text("a", name), priority=priority)

    host.calls[0].finish()
    assert elements(host) == [b"3", b"1"]
    host.calls[0].finish()
    assert elements(host) == [b"2"]


def test_each_call_of_a_batch_gets_its_own_answer(front: Front):
    host = busy_host(front)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(4)]
    host.calls[0].finish()

    running = host.calls[0]
    for item in (2, 0, 3, 1):
        running.send(outputs(text("out", b"answer %d" % item)), item)
        running.end(item)

    assert [texts(read(reader)) for reader in readers] == [[b"answer %d" % number] for number in range(4)]


def test_calls_that_do_not_fit_are_never_in_one_batch(front: Front):
    host = busy_host(front)
    front.call("add", text("a", b"1"))
    front.call("add", text("b", b"2"))
    front.call("add", text("a", b"3"))

    host.calls[0].finish()
    assert elements(host) == [b"1", b"3"]
    host.calls[0].finish()
    assert elements(host) == [b"2"]


def test_a_cancelled_item_ends_alone(front: Front):
    host = busy_host(front)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(3)]
    host.calls[0].finish()

    readers[1].cancel()
    assert host.calls[0].cancels == [(1, False)]
    host.calls[0].finish()

    assert error_of(readers[0]) is None
    assert error_of(readers[2]) is None
    assert texts(read(readers[1])) == []


def test_an_item_whose_time_is_over_ends_alone(front: Front):
    host = busy_host(front)
    readers = [front.call("add", text("a", b"1"), seconds=seconds) for seconds in (5, None)]
    host.calls[0].finish()

    front.clock.pass_time(5)

    assert isinstance(error_of(readers[0]), DeadlinePassed)
    assert host.calls[0].cancels == [(0, True)]
    host.calls[0].finish()
    assert error_of(readers[1]) is None


def test_an_overdue_call_is_in_no_batch_even_if_the_timer_is_late(front: Front):
    host = busy_host(front)
    front.call("add", text("a", b"1"), priority=1)
    overdue = front.call("add", text("a", b"2"), seconds=3)
    front.clock.now += 10  # and the alarm has not rung

    host.calls[0].finish()
    assert elements(host) == [b"1"]
    host.calls[0].finish()

    assert isinstance(error_of(overdue), DeadlinePassed)
    assert host.n_started == 2


def test_one_bad_item_fails_alone(front: Front):
    host = busy_host(front, is_idempotent=True)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(2)]
    host.calls[0].finish()

    host.calls[0].end(0, HandlerFailed("this one"))
    host.calls[0].send(outputs(text("out", b"1")), 1)
    host.calls[0].end(1)
    front.clock.pass_time(1)

    assert isinstance(error_of(readers[0]), HandlerFailed)
    assert error_of(readers[1]) is None
    assert not host.calls


@pytest.mark.parametrize("error", [HandlerFailed("all"), WorkerLost("lost")])
def test_a_batch_that_fails_is_tried_once_more_call_by_call(front: Front, error: CorosrvError):
    host = busy_host(front, is_idempotent=True)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(2)]
    host.calls[0].finish()

    host.calls[0].fail(error)
    front.clock.pass_time(1)

    assert len(host.calls[0].call.items) == 1
    host.calls[0].finish()
    host.calls[0].fail(error)
    front.clock.pass_time(1)
    assert sorted(error_of(reader) is None for reader in readers) == [False, True]
    assert front.key().retries == {"batch_failed": 2}


def test_calls_of_a_batch_that_failed_are_in_no_batch_again(front: Front):
    host = busy_host(front, is_idempotent=True)
    for number in range(3):
        front.call("add", text("a", b"%d" % number))
    host.calls[0].finish()
    host.calls[0].fail(HandlerFailed("all"))
    front.call("add", text("other", b"0"))  # takes the slot while they are paused
    front.clock.pass_time(1)
    assert front.key().depth == 3

    host.calls[0].finish()

    assert len(host.calls[0].call.items) == 1


def test_a_batch_of_a_handler_that_is_not_idempotent_is_not_tried_again(front: Front):
    host = busy_host(front)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(2)]
    host.calls[0].finish()

    host.calls[0].fail(HandlerFailed("all"))
    front.clock.pass_time(10)

    assert all(isinstance(error_of(reader), HandlerFailed) for reader in readers)
    assert not host.calls


def test_refusals_are_not_tried_again(front: Front):
    host = busy_host(front, is_idempotent=True)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(2)]
    host.calls[0].finish()

    host.calls[0].fail(CallRefused("no"))

    assert all(isinstance(error_of(reader), CallRefused) for reader in readers)


def test_a_call_cancelled_while_its_batch_fails_stays_cancelled(front: Front):
    host = busy_host(front, is_idempotent=True)
    readers = [front.call("add", text("a", b"%d" % number)) for number in range(2)]
    host.calls[0].finish()
    host.calls[0].end(0, HandlerFailed("both"))

    readers[0].cancel()
    host.calls[0].end(1, HandlerFailed("both"))
    front.clock.pass_time(1)

    assert ended(readers[0])
    assert elements(host) == [b"1"]


# Gathering while a permit is free.


def quick(front: Front, host: FakeHost) -> None:
    """Lets calls come so fast that another is likely."""
    for _ in range(20):
        front.call("add", text("a", b"x"))
        front.clock.pass_time(0.001)
    while host.calls:
        host.calls[0].finish()
    front.clock.pass_time(0.1)
    while host.calls:
        host.calls[0].finish()


def test_the_first_call_of_all_does_not_wait_for_others(front: Front):
    host = front.add("p/0", batching())

    front.call("add", text("a", b"1"))

    assert elements(host) == [b"1"]


def test_calls_gather_while_others_are_likely_to_come(front: Front):
    host = front.add("p/0", batching())
    quick(front, host)

    front.call("add", text("a", b"1"))
    assert not host.calls
    front.clock.pass_time(0.05)
    front.call("add", text("a", b"2"))
    assert not host.calls
    front.clock.pass_time(0.051)

    assert elements(host) == [b"1", b"2"]


def test_a_full_batch_does_not_wait(front: Front):
    host = front.add("p/0", batching(max_size=2))
    quick(front, host)

    front.call("add", text("a", b"1"))
    front.call("add", text("a", b"2"))

    assert elements(host) == [b"1", b"2"]


def test_gathering_ends_before_the_earliest_deadline(front: Front):
    host = front.add("p/0", batching())
    quick(front, host)

    front.call("add", text("a", b"1"))
    reader = front.call("add", text("a", b"2"), seconds=0.03)
    front.clock.pass_time(0.0299)

    assert sorted(elements(host)) == [b"1", b"2"]
    host.calls[0].finish()
    assert error_of(reader) is None


def test_a_call_that_does_not_wait_is_not_gathered(front: Front):
    host = front.add("p/0", batching())
    quick(front, host)

    front.call("add", text("a", b"1"), waits=False)

    assert elements(host) == [b"1"]


def test_a_call_that_does_not_wait_overtakes_none_that_gathers(front: Front):
    host = front.add("p/0", batching())
    quick(front, host)
    front.call("add", text("a", b"1"))

    with pytest.raises(NoCapacity):
        front.call("add", text("a", b"2"), waits=False)


def test_what_gathers_does_not_go_to_a_worker_that_was_removed(front: Front):
    host = front.add("p/0", batching())
    front.dispatcher.expect("p", [batching()])
    quick(front, host)
    front.call("add", text("a", b"1"))

    front.dispatcher.remove_host(host)
    front.clock.pass_time(1)

    assert not host.calls
    assert front.key().depth == 1


def test_a_gathering_is_given_up_with_its_last_call(front: Front):
    host = front.add("p/0", batching())
    quick(front, host)
    front.call("add", text("a", b"1")).cancel()

    front.clock.pass_time(1)

    assert not host.calls
    assert front.key().depth == 0


def test_too_many_kinds_of_calls_run_one_by_one(front: Front):
    host = busy_host(front, max_queue=1000)
    for number in range(MAX_SIGNATURES + 2):
        for _ in range(2):
            front.call("add", text(f"a{number}", b"1"))
    front.clock.pass_time(1)
    host.calls[0].finish()

    sizes = []
    while host.calls:
        sizes.append(len(host.calls[0].call.items))
        host.calls[0].finish()

    assert sorted(sizes) == [1] * 4 + [2] * MAX_SIGNATURES
