"""Hundreds of predictions on workers that fail in every way at random: each ends once, and every step keeps count."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator

import gevent
import pytest

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.wire.messages import SlotToServer
from corosrv.workers.worker.parent.predict_call import TERMINAL
from corosrv.workers.worker.parent.predictor_process import PredictorProcess
from tests.workers.worker.predicting import TIMEOUT, counters, is_alive, ready, submit

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]

N_PREDICTIONS = 400
N_SLOTS = 6

# What a prediction does, how often, and with what.
DEEDS = [
    (40, "echo", {}),
    (20, "fail", {}),
    (20, "flood", {"chunks": 40, "size": 60_000}),
    (20, "wait_for_cancel", {}),
    (2, "write", {"what": "GARBAGE"}),
    (2, "write", {"what": "TOO_LARGE"}),
    (2, "write", {"what": "UNKNOWN"}),
    (2, "close_channel", {}),
    (2, "end_another", {}),
    (2, "end_twice", {}),
    (2, "talk_after_the_end", {}),
    (1, "exit", {"code": 3}),
    (1, "die", {"signal": signal.SIGKILL}),
    (1, "exit_in_a_frame", {}),
    (1, "done_and_exit", {}),
    (1, "write_to_control", {"what": "GARBAGE"}),
    (1, "close_control", {}),
    (1, "leave_family", {}),
]


class Client:
    """Runs one prediction: reads it to its end, or leaves it after a while."""

    def __init__(self, worker: PredictorProcess, chance: random.Random) -> None:
        ((_, do, arguments),) = chance.choices(DEEDS, [weight for weight, _, _ in DEEDS])
        self.leaves = chance.random() < 0.2
        self.cancels = do == "wait_for_cancel" or chance.random() < 0.1
        self.messages: list[SlotToServer] = []
        self.reader = submit(worker, do, **arguments)
        self.running = gevent.spawn(self._run)

    def _run(self) -> None:
        with self.reader:
            while taken := self.reader.take(TIMEOUT):
                self.messages += taken
                if self.cancels:
                    self.reader.cancel()
                if self.leaves:
                    return

    def check(self) -> None:
        """It has had one terminal message, the last one, or left before it came."""
        self.running.get(timeout=TIMEOUT)
        n_terminal = sum(isinstance(message, TERMINAL) for message in self.messages)
        assert n_terminal == 1 or (self.leaves and n_terminal == 0)
        assert n_terminal == 0 or isinstance(self.messages[-1], TERMINAL)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_prediction_ends_once_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.linked_process.LAST_BREATH", 0.05)
    chance = random.Random(seed)
    left = N_PREDICTIONS
    pids = []
    while left > 0:
        with struck(chance) as worker:
            pids.append(worker.pid)
            clients = []
            while left > 0 and worker.state is WorkerState.READY:
                if counters(worker)[0]:
                    clients.append(Client(worker, chance))
                    left -= 1
                gevent.sleep(chance.choice([0, 0, 0.001]))
            worker.stop(0.2)
            for client in clients:
                client.check()
            assert counters(worker) == (0, 0, N_SLOTS)

    assert len(pids) > 1
    assert not any(is_alive(pid) for pid in pids if pid is not None)


@contextlib.contextmanager
def struck(chance: random.Random) -> Iterator[PredictorProcess]:
    """A worker that may be killed or stopped from outside after a while."""
    with ready(slots=N_SLOTS) as worker:
        number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
        deed = gevent.spawn_later(chance.uniform(0.05, 3), strike, worker, number)
        try:
            yield worker
        finally:
            deed.kill()


def strike(worker: PredictorProcess, number: signal.Signals) -> None:
    if worker.pid is not None and is_alive(worker.pid):
        os.kill(worker.pid, number)
        if number is signal.SIGSTOP:
            worker.kill()
