from __future__ import annotations

import pytest

from corosrv.workers.worker.child.app_child import HEARTBEAT
from corosrv.workers.worker.parent.app_watch import Watchdog
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig


class Clock:
    """Ticks a watchdog through time, as the hub would."""

    def __init__(self, watchdog: Watchdog, now: float = 0.0) -> None:
        self.watchdog = watchdog
        self.now = now

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += min(self.watchdog.period, end - self.now)
            self.watchdog.tick(self.now)

    def stand_still(self, seconds: float) -> None:
        self.now += seconds
        self.watchdog.tick(self.now)

    @property
    def is_lost(self) -> bool:
        return self.watchdog.is_lost(self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock(Watchdog(lease=10.0, hang_grace=10.0, now=0.0))


def test_a_worker_without_heartbeats_is_lost_when_its_lease_expires(clock: Clock) -> None:
    clock.run(9.9)
    assert not clock.is_lost

    clock.run(0.2)

    assert clock.is_lost


def test_each_heartbeat_renews_the_lease_in_full(clock: Clock) -> None:
    clock.run(9.5)
    clock.watchdog.heartbeat(clock.now)

    clock.run(9.5)
    assert not clock.is_lost
    clock.run(1)

    assert clock.is_lost


def test_five_lost_heartbeats_in_a_row_do_not_end_a_lease() -> None:
    clock = Clock(Watchdog(AppWorkerConfig(app_ref="").lease_s, hang_grace=10.0, now=0.0))
    for _ in range(3):
        clock.watchdog.heartbeat(clock.now)
        clock.run(6 * HEARTBEAT)  # the sixth comes
        assert not clock.is_lost


def test_after_this_process_stood_still_the_lease_begins_anew(clock: Clock) -> None:
    clock.run(9.0)

    clock.stand_still(60.0)

    assert not clock.is_lost
    clock.run(9.9)
    assert not clock.is_lost
    clock.run(0.2)
    assert clock.is_lost


def test_a_late_tick_is_no_stand_still(clock: Clock) -> None:
    clock.run(9.0)

    clock.stand_still(1.5 * clock.watchdog.period)

    assert clock.is_lost


def test_a_call_hangs_when_it_goes_on_for_the_whole_grace(clock: Clock) -> None:
    clock.run(100.0)

    assert not clock.watchdog.hangs(90.1, clock.now)
    assert clock.watchdog.hangs(90.0, clock.now)


def test_a_call_that_may_go_on_never_hangs(clock: Clock) -> None:
    clock.run(1e5)

    assert not clock.watchdog.hangs(None, clock.now)


def test_after_this_process_stood_still_calls_have_their_grace_anew(clock: Clock) -> None:
    clock.run(5.0)

    clock.stand_still(60.0)

    assert not clock.watchdog.hangs(4.0, clock.now)
    clock.run(10.0)
    assert clock.watchdog.hangs(4.0, clock.now)


@pytest.mark.parametrize(
    ("lease", "grace", "period"), [(10, 10, 1), (1, 10, 0.1), (10, 1, 0.25), (100, 100, 1), (10, 0, 0.01)]
)
def test_ticks_are_fine_enough_for_the_shorter_time(lease: float, grace: float, period: float) -> None:
    assert Watchdog(lease, grace, 0.0).period == pytest.approx(period)
