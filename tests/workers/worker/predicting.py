"""Worker processes for tests: started, waited for, and gone at the end."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import gevent
from gevent.event import Event

from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import NEXT, WorkerState
from corosrv.workers.wire.messages import SlotToServer
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.predict_call import PredictReader
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.support.hostile_worker import COMMAND

TIMEOUT = 30.0  # seconds that anything may take

_numbers = itertools.count()


@contextlib.contextmanager
def started(predictor: str = "well", **config: Any) -> Iterator[PredictorProcess]:
    """A hostile worker, unless another command is given; killed at the end."""
    worker = PredictorProcess(WorkerConfig(**({"predictor": predictor, "command": COMMAND} | config)))
    worker.start()
    try:
        yield worker
    finally:
        worker.kill()
        worker.stop(TIMEOUT)


@contextlib.contextmanager
def ready(predictor: str = "well", slots: int = 1, **config: Any) -> Iterator[PredictorProcess]:
    with started(predictor, slots=slots, **config) as worker:
        wait_for(worker, WorkerState.READY)
        yield worker


def wait_for(worker: PredictorProcess | AppProcess, *states: WorkerState) -> None:
    """Waits for one of the states; fails where it cannot come any more."""
    changed = Event()
    worker.on_change(changed.set)
    with gevent.Timeout(TIMEOUT):
        while worker.state not in states:
            assert NEXT[worker.state], f"{worker.state}, not {states}: {worker.reason}: {worker.setup.logs}"
            changed.clear()
            changed.wait()


def submit(worker: PredictorProcess, do: str = "echo", *, context: Any = None, **arguments: Any) -> PredictReader:
    """A prediction on a free slot."""
    job = PredictJob(f"p{next(_numbers)}", {"do": do} | arguments, "/proc/nowhere", context or {})
    return worker.submit(job)


def read(reader: PredictReader) -> list[SlotToServer]:
    """All that a prediction says, to its end."""
    messages: list[SlotToServer] = []
    while taken := reader.take(TIMEOUT):
        messages += taken
    return messages


def counters(worker: PredictorProcess) -> tuple[int, int, int]:
    """Available, in use and poisoned slots; whose sum is checked."""
    permits = worker.permits
    assert permits is not None
    assert permits.available + permits.in_use + permits.poisoned == permits.total
    return permits.available, permits.in_use, permits.poisoned


def is_alive(pid: int) -> bool:
    """Also of a process that is no child; one that has ended and is not reaped counts as dead."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_death(pid: int) -> None:
    """Of a process that may be nobody's child here; asks the kernel, which tells of its end."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with gevent.Timeout(TIMEOUT, AssertionError(f"process {pid} lives on")):
            gevent.get_hub().wait(gevent.get_hub().loop.io(pidfd, 1))
    finally:
        os.close(pidfd)
