"""Which calls of a dispatcher go into the shared queue: Redis answers as a test says."""

from __future__ import annotations

import pytest

from corosrv.base.errors import NoCapacity, QueueFull, RedisUnavailable, ShuttingDown, Unavailable, WorkerLost
from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard
from corosrv.fleet.cluster import queue_scripts, shared_queue
from corosrv.fleet.cluster.accepted import AcceptedCalls
from corosrv.fleet.cluster.delivery import DeliveredCalls
from corosrv.fleet.cluster.health import LinkHealth
from corosrv.fleet.cluster.queue_consumer import QueueConsumer
from corosrv.fleet.cluster.queue_names import QueueTiming
from corosrv.fleet.cluster.shared_queue import SharedQueue
from tests.fleet.cluster.hand_driven import NAMES, HandDrivenRunner
from tests.workers.dispatch.hosts import Front, card, ended, error_of, text

KEY = "model:add:"
LOST = RedisUnavailable("it was lost")


class Case:
    """A front with one worker of one slot, which shares its calls."""

    def __init__(self, handler: HandlerCard | None = None, *, falls_back: bool = True, max_bytes: int = 1000) -> None:
        self.front = Front.make()
        self.handler = handler or card()
        self.runner = HandDrivenRunner()
        self.health = LinkHealth("redis")
        self.health.succeed()
        accepted = AcceptedCalls(NAMES, self.runner)  # type: ignore[arg-type]
        self.consumer = QueueConsumer(
            "app",
            self.front.dispatcher,
            NAMES,
            self.runner,  # type: ignore[arg-type]
            self.health,
            DeliveredCalls(NAMES, self.runner, 15_000),  # type: ignore[arg-type]
            QueueTiming(),
            lambda epoch: None,
        )
        self.queue = SharedQueue(
            "app", self.health, accepted, self.consumer, max_calls=5, max_bytes=max_bytes, falls_back=falls_back
        )
        self.front.dispatcher.share(self.queue)

    def with_worker(self) -> Case:
        self.worker = self.front.add("default/0", self.handler)
        return self

    def with_busy_worker(self) -> Case:
        self.with_worker()
        self.front.call()
        assert self.worker.n_started == 1
        return self

    def with_worker_elsewhere(self) -> Case:
        self.front.dispatcher.expect("other-front", [self.handler], is_elsewhere=True)
        return self

    @property
    def n_shared(self) -> int:
        return len(self.runner.of(queue_scripts.ENQUEUE))


def test_a_call_that_can_start_here_is_not_shared():
    case = Case().with_worker()

    case.front.call()

    assert (case.worker.n_started, case.n_shared) == (1, 0)


def test_a_call_does_not_overtake_those_that_wait_in_the_queue():
    case = Case().with_worker()
    case.consumer.on_bell(f"app|{KEY}", False)

    case.front.call()

    assert (case.worker.n_started, case.n_shared) == (0, 1)


def test_a_call_that_has_to_wait_is_shared():
    case = Case().with_busy_worker()

    case.front.call()

    assert (case.n_shared, case.consumer.backlogs[KEY]) == (1, 1)


def test_a_call_of_a_worker_elsewhere_is_shared():
    case = Case().with_worker_elsewhere()

    case.front.call()

    assert (case.n_shared, case.consumer.backlogs[KEY]) == (1, 0)


def test_a_call_for_which_a_worker_is_to_start_here_waits_here():
    case = Case()
    case.front.dispatcher.expect("default", [case.handler])

    case.front.call()

    assert (case.front.key().depth, case.n_shared) == (1, 0)


def test_a_call_that_must_not_wait_is_refused_and_not_shared():
    case = Case().with_busy_worker()

    with pytest.raises(NoCapacity):
        case.front.call(waits=False)

    assert case.n_shared == 0


def test_calls_of_a_batch_gather_here_while_a_worker_is_free():
    case = Case(card(batch=BatchLimits(4, 1000.0))).with_worker()
    case.consumer.on_bell(f"app|{KEY}", False)

    case.front.call()

    assert case.n_shared == 0


def test_bodies_of_calls_that_wait_have_a_limit():
    case = Case(max_bytes=300).with_busy_worker()
    case.front.call("add", text("in", b"x" * 200))

    with pytest.raises(QueueFull, match="300 bytes") as refused:
        case.front.call("add", text("in", b"x" * 200))

    assert (refused.value.retry_after, case.n_shared) == (1, 1)


@pytest.mark.parametrize(("own", "expected"), [(1000, 5), (2, 2)], ids=["of all keys", "of the handler"])
def test_no_more_calls_wait_than_the_lower_of_two_limits_says(own: int, expected: int):
    case = Case(card(max_queue=own)).with_busy_worker()

    case.front.call()

    assert case.runner.runs[0].arguments[1] == expected


# Without Redis.


def test_without_redis_calls_wait_here():
    case = Case().with_busy_worker()
    case.health.fail("it was lost")

    case.front.call()

    assert (case.front.key().depth, case.n_shared) == (1, 0)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_without_redis_calls_are_refused_where_that_is_wanted_and_where_nobody_here_serves_them(is_elsewhere: bool):
    case = Case(falls_back=is_elsewhere)
    case.with_worker_elsewhere() if is_elsewhere else case.with_worker()
    case.health.fail("it was lost")

    with pytest.raises(RedisUnavailable) as refused:
        case.front.call()

    assert (refused.value.status, refused.value.retry_after) == (503, 1)


def test_a_server_that_stops_shares_nothing_more():
    case = Case().with_busy_worker()
    case.queue.stop()

    case.front.call()

    assert case.n_shared == 0


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_call_that_redis_may_have_taken_waits_here_only_if_it_may_run_twice(is_idempotent: bool):
    case = Case(HandlerCard("add", is_idempotent=is_idempotent)).with_busy_worker()
    reader = case.front.call()

    case.health.fail("it was lost")
    case.runner.runs[0].reply(LOST)
    case.front.clock.pass_time(1.0)
    assert ended(reader) is not is_idempotent
    case.worker.calls[0].finish()

    assert case.worker.n_started == 1 + is_idempotent


def test_a_call_that_redis_may_have_taken_is_refused_where_no_redis_is_no_reason_to_run_here():
    case = Case(HandlerCard("add", is_idempotent=True), falls_back=False).with_busy_worker()
    reader = case.front.call()

    case.runner.runs[0].reply(LOST)

    assert isinstance(error_of(reader), Unavailable)


# Calls that nobody serves any more.


@pytest.mark.parametrize(("reply", "expected"), [(0, Unavailable), (1, WorkerLost)], ids=["not begun", "begun"])
def test_a_call_that_no_front_serves_any_more_is_refused_in_time(
    reply: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    case = Case().with_worker_elsewhere()
    reader = case.front.call()
    case.runner.runs[0].reply([b"queued", b"7-0"])
    case.queue.refuse_unservable()
    assert len(case.runner.runs) == 1  # some front serves it

    case.front.dispatcher.forget("other-front")
    case.queue.refuse_unservable()
    assert len(case.runner.runs) == 1  # it may be back in a moment
    monkeypatch.setattr(shared_queue, "PATIENCE", 0.0)
    case.queue.refuse_unservable()
    case.runner.await_run(queue_scripts.WITHDRAW).reply(reply)

    error = error_of(reader)
    assert isinstance(error, expected)
    assert not isinstance(error, ShuttingDown)


def test_a_call_whose_front_is_back_in_time_goes_on():
    case = Case().with_worker_elsewhere()
    reader = case.front.call()
    case.runner.runs[0].reply([b"queued", b"7-0"])
    case.front.dispatcher.forget("other-front")
    case.queue.refuse_unservable()

    case.with_worker_elsewhere()
    case.queue.refuse_unservable()

    assert not ended(reader)
