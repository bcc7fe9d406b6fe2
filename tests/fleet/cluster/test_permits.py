"""What a front holds of a worker that others use as well; at the end on a real Redis, at rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from corosrv.fleet.cluster import permits
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.fleet.cluster.permits import MAX_ARRIVALS, ArrivalStamps, PermitShare, PermitShares, share_of
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import PermitPool
from tests.support.patched import run_patched
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

LEASE, BEAT = 3.0, 0.3  # seconds, where a front dies


@dataclass(eq=False)
class Worker:
    """A worker with four slots."""

    id: str = "w"
    concurrency: int = 4
    permits: PermitPool = field(default_factory=lambda: PermitPool(range(4)))
    n_changes: int = 0

    def callers(self) -> Counter[str]:
        return Counter({"secret": self.permits.n_held})

    def changed(self) -> None:
        self.n_changes += 1


@dataclass(eq=False)
class Lent:
    """A share, and how often it has asked for a run of the script."""

    worker: Worker
    share: PermitShare
    n_wakes: int = 0

    @classmethod
    def of(cls, held: int) -> Lent:
        lent = cls(Worker(), PermitShare("u", lambda: lent.wake()))
        lent.share.add(lent.worker)
        lent.share.receive(held)
        return lent

    def wake(self) -> None:
        self.n_wakes += 1


def test_a_front_that_holds_nothing_starts_nothing():
    lent = Lent.of(0)

    assert lent.worker.permits.try_acquire() is None
    assert lent.worker.permits.n_usable == 4


def test_no_more_calls_start_than_permits_are_held():
    lent = Lent.of(2)

    permits = [lent.worker.permits.try_acquire() for _ in range(3)]

    assert [permit is not None for permit in permits] == [True, True, False]


def test_a_permit_that_was_granted_wakes_the_dispatcher_and_one_given_back_does_not():
    lent = Lent.of(1)
    before = lent.worker.n_changes

    lent.share.receive(3)
    lent.share.give_back(1)

    assert lent.worker.n_changes == before + 1
    assert lent.worker.permits.available == 2


@pytest.mark.parametrize(("is_contested", "available"), [(True, 0), (False, 1)])
def test_a_permit_whose_call_has_ended_stays_unless_others_wait(is_contested: bool, available: int):
    lent = Lent.of(1)
    permit = lent.worker.permits.try_acquire()
    assert permit is not None
    lent.share.is_contested = is_contested

    permit.release()

    assert lent.worker.permits.available == available
    assert lent.n_wakes == is_contested


def test_a_worker_that_drains_and_the_one_in_its_place_share_permits():
    lent = Lent.of(3)
    permit = lent.worker.permits.try_acquire()
    assert permit is not None
    later = Worker("w.2")

    lent.share.add(later)

    assert later.permits.available == 2
    permit.release()
    assert later.permits.available == 3


def test_a_front_that_is_alone_uses_all():
    lent = Lent.of(0)

    lent.share.be_alone()

    assert lent.worker.permits.available == 4
    assert lent.share.idle == 0


def test_callers_are_told_by_a_hash():
    lent = Lent.of(2)
    lent.worker.permits.try_acquire()

    assert lent.share.callers() == {share_of("secret"): 1}
    assert "secret" not in share_of("secret")
    assert share_of("") == ""


def test_calls_have_the_stamp_of_the_first_run_after_they_came():
    arrivals = ArrivalStamps()
    arrivals.note(3, 10)
    arrivals.note(3, 11)
    arrivals.note(5, 12)

    assert [arrivals.stamp(number) for number in (1, 3, 4, 5, 6)] == [10, 10, 12, 12, 0]


def test_few_arrivals_are_remembered_and_the_oldest_keep_their_order():
    arrivals = ArrivalStamps()
    for number in range(1, 3 * MAX_ARRIVALS):
        arrivals.note(number, number)

    assert arrivals.stamp(1) <= arrivals.stamp(2 * MAX_ARRIVALS) == 2 * MAX_ARRIVALS
    assert len(arrivals._numbers) <= 2 * MAX_ARRIVALS


class RestingFront:
    """A front of one worker, whose calls are none."""

    def __init__(self, url: str, name: str) -> None:
        self.client = RedisClient(url, timeout=5)
        self.shares = PermitShares(self.client, KeyNames("test"), name, Dispatcher())
        self.shares.lend("u", Worker())
        (self.share,) = self.shares.shares
        assert self.client.ping()
        self.shares.start()

    @property
    def n_runs(self) -> int:
        return self.shares._n_runs

    def wait_held(self, n_permits: int) -> None:
        wait_until(lambda: self.share.held == n_permits, f"{n_permits} permits")

    def die(self) -> None:
        self.shares._greenlet.kill()
        self.shares._notices.close()


def divide(url: str) -> int:
    """Has a second front come while no beat is due. Returns how many runs of the script the even parts took."""
    permits.BEAT = 0.05  # in which an empty Redis grants nothing
    first = RestingFront(url, "a")
    first.wait_held(4)
    permits.BEAT = 600.0
    n_runs = first.n_runs
    wait_until(lambda: first.n_runs > n_runs, "the last beat")
    n_runs = first.n_runs

    second = RestingFront(url, "b")
    second.wait_held(2)
    first.wait_held(2)
    return first.n_runs - n_runs + second.n_runs


def test_a_new_front_has_its_part_by_notices_and_waits_for_no_beat(own_redis: RedisServer):
    assert run_patched(divide, own_redis.url) <= 6


def bury(url: str) -> int:
    """Has one of two fronts die. Returns in how many of its runs the other one had all permits."""
    permits.BEAT, permits.LEASE_MS = BEAT, int(LEASE * 1000)
    first, second = RestingFront(url, "a"), RestingFront(url, "b")
    first.wait_held(2)
    second.wait_held(2)
    second.die()
    n_runs = first.n_runs
    first.wait_held(4)
    return first.n_runs - n_runs


def test_permits_of_a_dead_front_come_back_with_the_first_beat_after_its_lease(own_redis: RedisServer):
    assert run_patched(bury, own_redis.url) <= LEASE / BEAT + 2
