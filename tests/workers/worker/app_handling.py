"""App worker processes for tests: started, waited for, given calls, and gone at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
from gevent.event import Event

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import InferOutputs, InferRequest
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.host import CallListener, HandedCall, HandedItem, RunningCall
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from corosrv.workers.worker.parent.call_services import CallServices
from tests.workers.worker.app_children.scripted import COMMAND
from tests.workers.worker.predicting import wait_for

TIMEOUT = 30.0  # seconds that anything may take


@contextlib.contextmanager
def started(
    app_ref: str = "well", pool: str | None = "default", services: CallServices | None = None, **config: Any
) -> Iterator[AppProcess]:
    """Starts a scripted app, unless another command is given; it is killed at the end."""
    settings = {"app_ref": app_ref, "command": COMMAND} | config
    worker = AppProcess(AppWorkerConfig(**settings), pool, "0", 1, services)
    worker.start()
    try:
        yield worker
    finally:
        worker.kill()
        worker.stop(TIMEOUT)


@contextlib.contextmanager
def ready(app_ref: str = "well", pool: str = "default", **config: Any) -> Iterator[AppProcess]:
    with started(app_ref, pool, **config) as worker:
        wait_for(worker, WorkerState.READY)
        yield worker


class Recorder(CallListener):
    """Keeps what a call gives, and checks that each item ends once and gives nothing after that."""

    def __init__(self, n_items: int = 1) -> None:
        self.outputs: list[list[InferOutputs]] = [[] for _ in range(n_items)]
        self.n_bytes = 0
        self.ends: dict[int, CorosrvError | None] = {}
        self.has_news = Event()
        self.has_room = Event()
        self.has_room.set()
        self.call: RunningCall
        self.permit: Any = None
        self.was_held_at_end: bool | None = None
        self.ended_at = 0.0

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None:
        assert item not in self.ends
        self.outputs[item].append(outputs)
        self.n_bytes += n_bytes
        self.has_news.set()

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        assert item not in self.ends, f"item {item} ends twice"
        self.ends[item] = error
        self.ended_at = time.monotonic()
        if len(self.ends) == len(self.outputs):
            self.was_held_at_end = self.permit.is_held
        self.has_news.set()

    def wait_for_room(self) -> None:
        self.has_room.wait()

    # For tests.

    @property
    def is_over(self) -> bool:
        return len(self.ends) == len(self.outputs)

    @property
    def parameters(self) -> list[dict[str, Any]]:
        return [dict(outputs.parameters) for outputs in self.outputs[0]]

    def wait_for_outputs(self, n: int = 1, item: int = 0) -> None:
        self._wait_until(lambda: len(self.outputs[item]) >= n)

    def wait_for_end(self, item: int = 0) -> CorosrvError | None:
        self._wait_until(lambda: item in self.ends)
        return self.ends[item]

    def wait_until_over(self) -> list[CorosrvError | None]:
        self._wait_until(lambda: self.is_over)
        assert self.was_held_at_end is False, "the last end was told before the permit had ended"
        return [self.ends[item] for item in range(len(self.outputs))]

    def _wait_until(self, is_true: Any) -> None:
        with gevent.Timeout(TIMEOUT):
            while not is_true():
                self.has_news.clear()
                self.has_news.wait()


def item(
    do: str = "echo",
    inputs: Sequence[Tensor] = (),
    timeout: float | None = None,
    request_id: str = "",
    **parameters: Any,
) -> HandedItem:
    deadline = None if timeout is None else time.monotonic() + timeout
    return HandedItem(InferRequest(tuple(inputs), parameters={"do": do} | parameters), deadline, request_id)


def hand(worker: AppProcess, *items: HandedItem, handler: int = 0, **details: Any) -> Recorder:
    """Hands a call over on an idle slot of the handler's group."""
    group = next(group for group in worker.groups if handler in group.handlers)
    recorder = Recorder(len(items))
    recorder.permit = group.permits.try_acquire()
    assert recorder.permit is not None, "no slot is idle"
    recorder.call = worker.start_call(recorder.permit, HandedCall(handler, items, **details), recorder)
    return recorder


def call(worker: AppProcess, do: str = "echo", **arguments: Any) -> Recorder:
    return hand(worker, item(do, **arguments))


def counters(worker: AppProcess) -> tuple[int, int, int, int]:
    """Returns available, in use, poisoned and retiring slots of all groups; their sum is checked."""
    sums = [0, 0, 0, 0]
    for group in worker.groups:
        permits = group.permits
        counts = permits.available, permits.in_use, permits.poisoned, permits.retiring
        assert sum(counts) == permits.total
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
    return sums[0], sums[1], sums[2], sums[3]
