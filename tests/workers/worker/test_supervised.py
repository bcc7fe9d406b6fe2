"""The process that follows one that died: after which pause, and when none does."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent.event import Event

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import Log
from corosrv.workers.worker.parent.supervised import LONG_LIFE, ServingProcess, SupervisedProcess

TIMEOUT = 10.0
PAUSE = 0.02

CODEC: Any = StructCodec(Log)


class ScriptedProcess(ServingProcess[Any, Any, Any, Any]):
    """Is in the states that a test puts it into."""

    name = "the test's process"

    def __init__(self) -> None:
        super().__init__(CODEC, CODEC)

    def start(self) -> None:
        self._enter(WorkerState.READY)

    def fail(self) -> None:
        self._enter(WorkerState.SETUP_FAILED, "it cannot serve")

    def die(self) -> None:
        self._enter(WorkerState.DEFUNCT, "it died")

    def stop(self, timeout: float) -> None:
        pass


class Supervised(SupervisedProcess[ScriptedProcess]):
    """Counts the processes that were started."""

    def __init__(self, pause: float = PAUSE, long_life: float = LONG_LIFE, is_wanted: bool = True) -> None:
        super().__init__(ScriptedProcess, is_wanted=is_wanted)
        self._backoff = Backoff(pause, 8 * pause, long_life)
        self.counts: list[int] = []  # of restarts, as each start sees it
        self.has_started = Event()

    def _start_next(self) -> None:
        self.counts.append(self.n_restarts)
        super()._start_next()
        self.has_started.set()

    def die(self) -> bool:
        """Returns whether another process is started within three pauses."""
        self.has_started.clear()
        self.process.die()
        return self.has_started.wait(3 * PAUSE)

    def die_and_return(self) -> None:
        self.has_started.clear()
        self.process.die()
        assert self.has_started.wait(TIMEOUT)


def started(**options: Any) -> Supervised:
    supervised = Supervised(**options)
    supervised.start()
    return supervised


def restarts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "again" in message]


def test_each_death_is_followed_by_one_start_that_is_counted_before() -> None:
    supervised = started()

    supervised.die_and_return()
    supervised.die_and_return()

    assert supervised.counts == [1, 2]
    assert supervised.state is WorkerState.READY


def test_a_death_returns_before_the_pause_is_over() -> None:
    supervised = started(pause=0.0)

    supervised.process.die()

    assert supervised.counts == []
    gevent.idle()
    assert supervised.counts == [1]


def test_listeners_hear_of_the_end_and_of_the_next_process() -> None:
    supervised, states = Supervised(), []
    supervised.on_change(lambda: states.append(supervised.state))

    supervised.start()
    supervised.die_and_return()

    assert states == [WorkerState.READY, WorkerState.DEFUNCT, WorkerState.STARTING, WorkerState.READY]


def test_a_listener_that_fails_keeps_no_process_from_following() -> None:
    supervised = started()
    supervised.on_change(lambda: [][0])

    supervised.die_and_return()

    assert supervised.state is WorkerState.READY


def test_the_log_names_the_process_and_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    supervised = started()

    supervised.die_and_return()
    supervised.die_and_return()

    assert restarts(caplog) == [
        f"the test's process is started again in {PAUSE:g} s",
        f"the test's process is started again in {2 * PAUSE:g} s",
    ]


@pytest.mark.parametrize(("long_life", "second_pause"), [(0.0, PAUSE), (LONG_LIFE, 2 * PAUSE)])
def test_only_a_long_life_makes_the_next_pause_short_again(
    long_life: float, second_pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = started(long_life=long_life)

    supervised.die_and_return()
    supervised.die_and_return()

    assert restarts(caplog)[1] == f"the test's process is started again in {second_pause:g} s"


def test_a_first_process_that_cannot_serve_is_not_replaced() -> None:
    supervised = Supervised()

    supervised.process.fail()

    assert not supervised.has_started.wait(3 * PAUSE)
    assert (supervised.state, supervised.reason) == (WorkerState.SETUP_FAILED, "it cannot serve")


def test_a_later_process_that_cannot_serve_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    supervised = started()
    with monkeypatch.context() as patched:
        patched.setattr(ScriptedProcess, "start", ScriptedProcess.fail)
        supervised.die_and_return()
    supervised.has_started.clear()

    assert supervised.has_started.wait(TIMEOUT)
    assert supervised.state is WorkerState.READY


def test_nothing_is_started_where_no_restart_is_wanted() -> None:
    supervised = started(is_wanted=False)

    assert not supervised.die()
    assert supervised.n_restarts == 0


@pytest.mark.parametrize("end", [SupervisedProcess.kill, lambda supervised: supervised.stop(0.0)])
def test_nothing_follows_a_process_that_was_ended(end: Any) -> None:
    supervised = started()
    end(supervised)

    assert not supervised.die()


def test_the_end_ends_a_pause_that_runs() -> None:
    supervised = started()
    supervised.process.die()
    gevent.idle()

    supervised.kill()

    assert not supervised.has_started.wait(3 * PAUSE)
    assert supervised.n_restarts == 0
