"""Which calls may wait: what is predicted for them, and what is told of those that wait for one worker."""

from __future__ import annotations

import pytest

from corosrv.errors import QueueFull
from tests.dispatch.hosts import FakeHost, Front, card


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

    front.call(seconds=2)
    with pytest.raises(QueueFull, match=r"wait for some 4\.0 s, which is longer than its deadline allows"):
        front.call(seconds=3.9)
    front.call(seconds=4)

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

    assert refusal.value.retry_after == 2


def test_the_time_that_calls_of_one_key_wait_for_a_worker_is_not_anothers(front: Front):
    front.add("p/0", card("a"), card("b"))
    front.call("a", session="s")
    front.add("p/1", card("a"), card("b"))
    front.call("b")
    front.call("a", session="s")
    front.clock.pass_time(0.1)

    assert front.key("model:a:").oldest == pytest.approx(0.1)
    assert front.key("model:b:").oldest is None
