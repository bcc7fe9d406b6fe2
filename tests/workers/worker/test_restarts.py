"""The process that follows one that died: after which pause, and when none does."""

from __future__ import annotations

import logging

import gevent
import pytest
from gevent.event import Event

from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.worker.parent.process import Restarts

TIMEOUT = 10.0
PAUSE = 0.02
LONG_LIFE = 60.0

log = logging.getLogger("corosrv.tests.restarts")


class Owner:
    """Counts the processes that it would have started."""

    def __init__(self, pause: float = PAUSE, long_life: float = LONG_LIFE, is_wanted: bool = True) -> None:
        self.restarts = Restarts(
            self._start_next, Backoff(pause, 8 * pause, long_life), log, "the test's process", is_wanted=is_wanted
        )
        self.counts: list[int] = []  # of restarts, as each start sees it
        self._has_started = Event()

    def _start_next(self) -> None:
        self.counts.append(self.restarts.count)
        self._has_started.set()

    def die(self) -> bool:
        """Returns whether another process is started within three pauses."""
        self._has_started.clear()
        self.restarts.note_death()
        return self._has_started.wait(3 * PAUSE)

    def die_and_return(self) -> None:
        self._has_started.clear()
        self.restarts.note_death()
        assert self._has_started.wait(TIMEOUT)


def test_each_death_is_followed_by_one_start_that_is_counted_before() -> None:
    owner = Owner()

    owner.die_and_return()
    owner.die_and_return()

    assert owner.counts == [1, 2]


def test_a_death_returns_before_the_pause_is_over() -> None:
    owner = Owner(pause=0.0)

    owner.restarts.note_death()

    assert owner.counts == []
    gevent.idle()
    assert owner.counts == [1]


def test_the_log_names_the_process_and_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()

    owner.die_and_return()
    owner.die_and_return()

    assert caplog.messages == [
        f"the test's process is started again in {PAUSE:g} s",
        f"the test's process is started again in {2 * PAUSE:g} s",
    ]


@pytest.mark.parametrize(("long_life", "second_pause"), [(0.0, PAUSE), (LONG_LIFE, 2 * PAUSE)])
def test_only_a_long_life_makes_the_next_pause_short_again(
    long_life: float, second_pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(long_life=long_life)

    for _ in range(2):
        owner.restarts.note_ready()
        owner.die_and_return()

    assert caplog.messages[1] == f"the test's process is started again in {second_pause:g} s"


def test_nothing_is_started_where_no_restart_is_wanted() -> None:
    owner = Owner(is_wanted=False)

    assert not owner.die()
    assert owner.restarts.count == 0


def test_nothing_is_started_by_deaths_after_restarts_were_given_up() -> None:
    owner = Owner()
    owner.restarts.give_up()

    assert not owner.die()


def test_giving_up_ends_a_pause_that_runs() -> None:
    owner = Owner()
    owner.restarts.note_death()
    gevent.idle()

    owner.restarts.give_up()

    assert not owner._has_started.wait(3 * PAUSE)
    assert owner.restarts.count == 0
