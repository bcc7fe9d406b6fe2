"""Which calls may wait: what is predicted for them, and what is told of those that wait for one worker."""

from __future__ import annotations

import pytest

from corosrv.base.errors import QueueFull
from corosrv.contracts.jobs.infer import BatchLimits
from tests.workers.dispatch.hosts import FakeHost, Front, card, ended, error_of, text


@pytest.fixture
def front() -> Front:
    return Front.make()


def busy_host(front: Front, **options: object) -> FakeHost:
    """Adds a worker of one slot, whose calls have taken two seconds, and which runs one."""
    host = front.add("p/0", card(**options))
    front.call()
    front.clock.pass_time(2)
    host.calls[0].finish()
    front.call()
    return host


def test_without_admission_a_call_waits_whatever_is_predicted(front: Front):
    busy_host(front)
    front.call()

    front.call(seconds=0.5)

    assert front.key().depth == 2


def test_a_call_whose_predicted_wait_ends_with_its_deadline_may_wait(front: Front):
    busy_host(front, admission="predict")

    front.call(seconds=4)
    with pytest.raises(QueueFull, match=r"wait for some 4\.0 s, which is longer than its deadline allows"):
        front.call(seconds=5.9)
    front.call(seconds=6)

    assert front.key().depth == 2


def test_a_call_that_waits_for_a_first_worker_is_not_refused_by_prediction(front: Front):
    host = busy_host(front, admission="predict")
    front.dispatcher.expect("p", [card(admission="predict")])
    front.dispatcher.remove_host(host)

    front.call(seconds=1)

    assert front.key().depth == 1


def test_a_full_queue_says_so_also_where_waits_are_predicted(front: Front):
    busy_host(front, admission="predict", max_queue=1)
    front.call()

    with pytest.raises(QueueFull, match="1 calls wait for it, which is the limit") as refusal:
        front.call(seconds=0.1)

    assert refusal.value.retry_after in (2, 3)


def test_the_time_that_calls_of_one_key_wait_for_a_worker_is_not_anothers(front: Front):
    front.add("p/0", card("a"), card("b"))
    front.call("a", session="s")
    front.add("p/1", card("a"), card("b"))
    front.call("b")
    front.call("a", session="s")
    front.clock.pass_time(0.1)

    assert front.key("model:a:").oldest == pytest.approx(0.1)
    assert front.key("model:b:").oldest is None


def test_calls_that_wait_for_one_worker_count_for_those_that_come_after(front: Front):
    host = front.add("p/0", card(max_queue=2))
    front.call(session="s")
    front.clock.pass_time(2)
    host.calls[0].finish()
    front.call(session="s")
    front.add("p/1", card(max_queue=2))
    front.call()
    front.call(session="s")
    front.call()

    with pytest.raises(QueueFull) as refusal:
        front.call()

    assert refusal.value.retry_after in (3, 4)  # two seconds of what runs, and one of two turns at two workers


def test_what_runs_for_twice_the_usual_time_is_no_reason_to_refuse(front: Front):
    busy_host(front, admission="predict")
    with pytest.raises(QueueFull):
        front.call(seconds=1)
    front.clock.pass_time(4)

    front.call(seconds=1)

    assert front.key().depth == 1


# At the bound.


def test_a_newcomer_displaces_the_last_of_the_worst_class_which_is_told_when_to_come_back(front: Front):
    host = busy_host(front, max_queue=4)
    kept = [front.call(priority=8), front.call(priority=9, seconds=50), front.call()]
    displaced = front.call(priority=9)

    urgent = front.call(priority=1)

    error = error_of(displaced)
    assert isinstance(error, QueueFull)
    assert "a more urgent call took its place" in str(error)
    assert error.retry_after in (8, 9)  # four calls of two seconds are before it now
    assert not any(map(ended, [*kept, urgent]))
    assert (front.key().depth, front.key().outcomes["queue_full"]) == (4, 1)
    host.calls[0].finish()
    host.calls[0].finish()
    assert error_of(urgent) is None


@pytest.mark.parametrize("priority", [5, 6])
def test_a_newcomer_of_no_better_class_displaces_nobody(front: Front, priority: int):
    busy_host(front, max_queue=1)
    waiting = front.call(priority=5)

    with pytest.raises(QueueFull):
        front.call(priority=priority)

    assert not ended(waiting)


def test_a_call_that_rose_by_waiting_is_not_displaced_by_its_new_class(front: Front):
    busy_host(front, max_queue=1)
    waiting = front.call(priority=5)
    front.clock.pass_time(10)

    with pytest.raises(QueueFull):
        front.call(priority=4)

    assert not ended(waiting)


@pytest.mark.parametrize(("priority", "seconds"), [(1, 2), (5, 6), (9, 8)])
def test_the_time_to_come_back_is_that_of_the_class(front: Front, priority: int, seconds: int):
    busy_host(front, admission="predict")
    for other in (1, 5, 5, 9):
        front.call(priority=other)

    with pytest.raises(QueueFull) as refusal:
        front.call(priority=priority, seconds=0.1)

    assert refusal.value.retry_after in (seconds, seconds + 1)


def test_a_call_that_waits_for_its_worker_can_be_displaced(front: Front):
    front.add("p/0", card(max_queue=1))
    front.call(session="s")
    front.add("p/1", card(max_queue=1))
    front.call()
    waiting = front.call(session="s")

    front.call(priority=1)

    assert isinstance(error_of(waiting), QueueFull)
    assert front.key().depth == 1


def test_a_newcomer_that_completes_a_batch_displaces_none_of_it(front: Front):
    host = front.add("p/0", card(batch=BatchLimits(3, 1000), max_queue=2))
    for _ in range(30):  # so often that it pays to wait for another
        front.call().cancel()
        front.clock.pass_time(0.001)
    host.calls[0].finish()
    waiting = [front.call(priority=9), front.call(priority=9)]
    assert front.key().depth == 2

    urgent = front.call(priority=1)

    assert len(host.calls[-1].running) == 3
    host.calls[-1].finish()
    assert [error_of(reader) for reader in (*waiting, urgent)] == [None] * 3


def test_a_full_queue_displaces_its_own_calls_alone(front: Front):
    front.add("p/0", card("a", max_queue=1))
    front.add("q/0", card("b"))
    front.call("a")
    front.call("b")
    waiting, other = front.call("a", priority=5), front.call("b", priority=9)

    front.call("a", priority=1)

    assert isinstance(error_of(waiting), QueueFull)
    assert not ended(other)


def test_a_front_that_is_full_lets_an_urgent_call_displace_one_of_another_key():
    front = Front.make(max_calls=1)
    front.add("p/0", card("a"), card("b"))
    front.call("a")
    waiting = front.call("a")

    front.call("b", priority=1)

    assert isinstance(error_of(waiting), QueueFull)
    assert (front.key("model:a:").depth, front.key("model:b:").depth) == (0, 1)


def test_a_call_too_large_for_what_would_leave_displaces_nobody():
    front = Front.make(max_bytes=2000)
    front.add("p/0")
    front.call()
    waiting = front.call("add", text("a", b"x" * 1000))
    front.call("add", text("a", b"x" * 900))

    with pytest.raises(QueueFull, match="2000 bytes"):
        front.call("add", text("a", b"x" * 1500), priority=1)
    assert not ended(waiting)

    front.call("add", text("a", b"x" * 500), priority=1)
    assert front.dispatcher.stats().n_waiting_bytes < 2000
