"""A worker that outlives its processes: real ones, one after the other, that die when they are told to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gevent.event import Event

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, PredictorWorker, WorkerConfig
from tests.support.hostile_worker import COMMAND
from tests.workers.worker.predicting import TIMEOUT, wait_for_death

PAUSE = 0.05


class Lives:
    """Makes its processes with the predictors it is given, the last for all that follow; keeps what is told."""

    def __init__(self, *predictors: str, is_wanted: bool = True) -> None:
        self._predictors = list(predictors)
        self.made: list[PredictorProcess] = []
        self.worker = PredictorWorker(self._make, is_wanted, PAUSE)
        self.told: list[WorkerState] = []
        self._news = Event()
        self.worker.on_change(self._on_change)

    def _make(self) -> PredictorProcess:
        predictor = self._predictors.pop(0) if len(self._predictors) > 1 else self._predictors[0]
        self.made.append(PredictorProcess(WorkerConfig(predictor=predictor, slots=1, command=COMMAND)))
        return self.made[-1]

    def _on_change(self) -> None:
        self.told.append(self.worker.state)
        self._news.set()

    def has_another(self) -> bool:
        """Waits for one, longer than any pause that it would make first."""
        until = time.monotonic() + 3 * PAUSE
        while len(self.made) == 1 and (left := until - time.monotonic()) > 0:
            self._news.clear()
            self._news.wait(left)
        return len(self.made) > 1

    def wait_for(self, state: WorkerState, n_restarts: int = 0) -> None:
        with gevent.Timeout(TIMEOUT):
            while self.worker.state is not state or self.worker.n_restarts < n_restarts:
                self._news.clear()
                self._news.wait()


@contextmanager
def living(*predictors: str, is_wanted: bool = True) -> Iterator[Lives]:
    lives = Lives(*predictors, is_wanted=is_wanted)
    lives.worker.start()
    try:
        yield lives
    finally:
        for process in lives.made:
            process.kill()
            process.stop(TIMEOUT)
        lives.worker.stop(TIMEOUT)


def test_one_that_died_is_followed_by_another():
    with living("well") as lives:
        lives.wait_for(WorkerState.READY)
        first, pool = lives.made[0], lives.worker.permits

        first._link.kill()
        lives.wait_for(WorkerState.READY, n_restarts=1)

        assert lives.told == [
            WorkerState.READY,
            WorkerState.DEFUNCT,
            WorkerState.STARTING,
            WorkerState.READY,
        ]
        assert lives.worker.pid == lives.made[1].pid != first.pid
        assert lives.worker.permits is not pool
        assert lives.worker.reason == ""
        assert lives.worker.setup.status == "succeeded"


def test_nobody_follows_where_none_is_wanted():
    with living("well", is_wanted=False) as lives:
        lives.wait_for(WorkerState.READY)

        lives.made[0]._link.kill()
        lives.wait_for(WorkerState.DEFUNCT)

        assert not lives.has_another()
        assert lives.worker.n_restarts == 0


def test_a_first_set_up_that_fails_is_final():
    with living("fails:of this") as lives:
        lives.wait_for(WorkerState.SETUP_FAILED)

        assert not lives.has_another()
        assert lives.worker.reason == "of this"


def test_a_later_one_is_not():
    with living("well", "fails:for now", "well") as lives:
        lives.wait_for(WorkerState.READY)

        lives.made[0]._link.kill()
        lives.wait_for(WorkerState.READY, n_restarts=2)

        assert WorkerState.SETUP_FAILED in lives.told


def test_deaths_in_a_row_make_the_pauses_longer(monkeypatch, caplog):
    monkeypatch.setattr("corosrv.workers.worker.parent.predictor_process.LONGEST_PAUSE", 1.0)
    with living("well") as lives:
        for n_restarts in range(2):
            lives.wait_for(WorkerState.READY, n_restarts)
            lives.made[-1]._link.kill()
        lives.wait_for(WorkerState.READY, 2)

        assert f"started again in {PAUSE:g} s" in caplog.text
        assert f"started again in {2 * PAUSE:g} s" in caplog.text


def test_a_long_life_makes_the_next_pause_short_again(monkeypatch, caplog):
    monkeypatch.setattr("corosrv.workers.worker.parent.supervised.LONG_LIFE", 0.0)
    with living("well") as lives:
        for n_restarts in range(3):
            lives.wait_for(WorkerState.READY, n_restarts)
            lives.made[-1]._link.kill()
        lives.wait_for(WorkerState.READY, 3)

        assert caplog.text.count(f"started again in {PAUSE:g} s") == 3


def test_what_is_stopped_while_it_pauses_stays_dead():
    with living("well") as lives:
        lives.wait_for(WorkerState.READY)
        lives.made[0]._link.kill()
        lives.wait_for(WorkerState.DEFUNCT)

        lives.worker.stop(TIMEOUT)

        assert not lives.has_another()


def test_a_worker_that_is_killed_is_not_followed():
    with living("well") as lives:
        lives.wait_for(WorkerState.READY)
        pid = lives.worker.pid
        assert pid is not None

        lives.worker.kill()
        wait_for_death(pid)
        lives.wait_for(WorkerState.STOPPED)

        assert not lives.has_another()
