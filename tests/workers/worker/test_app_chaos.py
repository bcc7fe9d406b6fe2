"""Many lives and many calls of app workers that fail in every way at random: each item ends once, nothing is left."""

from __future__ import annotations

import gc
import os
import random
import signal

import gevent
import pytest

from corosrv.contracts.jobs.setup import NEXT, WorkerState
from corosrv.formats.tensors import Tensor
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from tests.support.descriptors import n_descriptors
from tests.support.waiting import wait_until
from tests.workers.worker.app_children.scripted import COMMAND
from tests.workers.worker.app_handling import TIMEOUT, Recorder, call, counters, hand, item, wait_for
from tests.workers.worker.predicting import is_alive

STARTS = ["well"] * 6 + ["hangs_in_on_start", "fails:no", "exits:1", "writes:GARBAGE", "loses_a_slot:1"]
FAILURES = ["end_twice", "lie_about_size", "attach_unsealed", "close_lane", "exit_in_a_frame", "end_another"]
LARGE = Tensor("x", "UINT8", [2 << 20], raw=bytes(2 << 20))


def new_worker(app_ref: str, **config: float) -> AppProcess:
    settings = AppWorkerConfig(app_ref=app_ref, command=COMMAND, **config)  # type: ignore[arg-type]
    return AppProcess(settings, "default", "0", 1)


def n_greenlets() -> int:
    gc.collect()
    return sum(isinstance(thing, gevent.Greenlet) and not thing.ready() for thing in gc.get_objects())


def live(chance: random.Random) -> AppProcess:
    """Lives one life: starts, is used or not, and is ended in one of all ways, perhaps in the middle of its start."""
    worker = new_worker(chance.choice(STARTS), stop_grace_s=1.0)
    worker.start()
    if chance.random() < 0.3:
        gevent.sleep(chance.random() * 0.3)
    else:
        wait_until(lambda: worker.state is not WorkerState.STARTING or worker.pools)
    if worker.state is WorkerState.READY and chance.random() < 0.8:
        call(worker, chance.choice(["echo", "hang", *FAILURES]), inputs=[LARGE] * chance.randint(0, 1))
    match chance.randrange(4):
        case 0:
            worker.kill()
        case 1:
            worker.drain()
        case 2 if worker.pid is not None and worker.state is not WorkerState.SETUP_FAILED:
            if is_alive(worker.pid):
                os.kill(worker.pid, signal.SIGKILL)
    worker.stop(0.2)
    return worker


@pytest.mark.own_process
def test_many_lives_leave_no_process_descriptor_or_greenlet() -> None:
    chance = random.Random(5)
    live(chance)  # whatever the first one opens for all
    before = n_descriptors(), n_greenlets()

    for _ in range(8):
        lives = [gevent.spawn(live, random.Random(chance.random())) for _ in range(6)]
        for worker in (life.get(timeout=120) for life in lives):
            assert not NEXT[worker.state], f"{worker.state}: {worker.reason}"
            assert worker.pid is None or not is_alive(worker.pid)
            assert worker.in_flight == 0
            assert counters(worker)[1] == 0

    wait_until(lambda: n_greenlets() <= before[1])
    wait_until(lambda: n_descriptors() <= before[0])


class Load:
    """Hands calls of all kinds to one worker, cancels some, and keeps them."""

    def __init__(self, worker: AppProcess, chance: random.Random) -> None:
        self._worker = worker
        self._chance = chance
        self.recorders: list[Recorder] = []

    def step(self) -> None:
        chance, worker = self._chance, self._worker
        handler = chance.choice([0, 1, 2])
        group = next(group for group in worker.groups if handler in group.handlers)
        if group.permits.available:
            do = "echo" if chance.random() < 0.99 else chance.choice(FAILURES)
            do = "wait_for_cancel" if chance.random() < 0.2 else do
            items = [item(do, [LARGE] * chance.randint(0, 1)) for _ in range(chance.choice([1, 1, 1, 3]))]
            self.recorders.append(hand(worker, *items, handler=handler))
        for recorder in self.recorders[-5:]:
            if not recorder.is_over and chance.random() < 0.6:
                recorder.call.cancel()
        counters(worker)
        gevent.sleep(0.001)  # the worker has its turn

    def run(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.step()
            if self._worker.state is not WorkerState.READY:
                break


def work(chance: random.Random) -> int:
    """Loads one worker until it breaks or is ended; returns the number of calls, each of which has ended once."""
    worker = new_worker("well", hang_grace_s=2.0)
    worker.start()
    wait_for(worker, WorkerState.READY)
    load = Load(worker, chance)
    load.run(300)
    if worker.state is WorkerState.READY and chance.random() < 0.5:
        worker.kill()
    else:
        for recorder in load.recorders:
            recorder.call.cancel()
    worker.stop(TIMEOUT)
    for recorder in load.recorders:
        recorder.wait_until_over()
    assert worker.in_flight == 0
    assert counters(worker)[1] == counters(worker)[3] == 0
    return len(load.recorders)


@pytest.mark.own_process
@pytest.mark.parametrize("seed", range(3))
def test_each_of_many_calls_ends_once_and_the_counts_return_to_zero(seed: int) -> None:
    chance = random.Random(seed)
    before = n_descriptors()

    n_calls = sum(work(chance) for _ in range(4))
    while n_calls <= 50:  # some have broken early
        n_calls += work(chance)

    wait_until(lambda: n_descriptors() <= before)
