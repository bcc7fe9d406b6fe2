"""A gRPC process in front of models that are functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from corosrv.base.errors import CallRefused, HandlerFailed, QueueFull, Unavailable, WorkerLost
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.objects import ObjectStore
from corosrv.workers.worker.parent.call_services import CallServices, submit_to
from tests.support.function_worker import FunctionCall, FunctionWorker

START = 60.0  # seconds


def echo(call: FunctionCall) -> None:
    call.send(*call.request.inputs, **call.request.parameters)


def hang(call: FunctionCall) -> None:
    Event().wait(60)


def count(call: FunctionCall) -> None:
    """Gives as many answers as the input `n` says."""
    for number in range(call.request.inputs[0].data[0]):
        call.send(Tensor("n", "INT32", [1], data=[number]))


def count_and_say_final(call: FunctionCall) -> None:
    last = call.request.inputs[0].data[0] - 1
    for number in range(last + 1):
        call.send(Tensor("n", "INT32", [1], data=[number]), is_final=number == last)


def fail(call: FunctionCall) -> None:
    """Fails as the parameter `how` says."""
    raise {
        "refused": CallRefused("no such colour"),
        "bug": HandlerFailed("the handler failed"),
        "full": _waiting(QueueFull("the queue is full"), 7),
        "unavailable": Unavailable("no worker is ready"),
        "lost": WorkerLost("the worker was lost"),
    }[str(call.request.parameters["how"])]


def _waiting(error: QueueFull, seconds: int) -> QueueFull:
    error.retry_after = seconds
    return error


def half(call: FunctionCall) -> None:
    """Gives one answer and then fails."""
    call.send(*call.request.inputs)
    fail(call)


def make_worker() -> FunctionWorker:
    worker = FunctionWorker()
    worker.add(echo, "echo", platform="tests")
    worker.add(echo, "add", "2", inputs=[TensorSpec("a", "INT32", [-1])], outputs=[TensorSpec("sum", "INT64", [1, 2])])
    worker.add(echo, "add", "10")
    worker.add(hang, "hang")
    worker.add(count, "count", is_stream=True)
    worker.add(count_and_say_final, "count_final", is_stream=True)
    worker.add(fail, "fail")
    worker.add(half, "half", is_stream=True)
    worker.add(echo, "small", capability={"type": "embed", "ctx": 512})
    worker.unready.add("hang")
    return worker


@contextlib.contextmanager
def serving(
    worker: Any,
    config: GrpcConfig | None = None,
    objects: ObjectStore | None = None,
    check_ready: Callable[[], None] | None = None,
) -> Iterator[GrpcFront]:
    """Starts a front and waits until it serves. `check_ready`: that of the worker, unless another one is given."""
    services = CallServices(submit_to(worker), objects)
    front = GrpcFront(config or GrpcConfig(), worker, check_ready or worker.check_ready, services)
    front.start()
    try:
        await_state(front, WorkerState.READY)
        yield front
    finally:
        front.stop(0.0)


def await_state(front: GrpcFront, *states: WorkerState) -> None:
    """Waits until the front is in one of these states."""
    changed = Event()
    front.on_change(changed.set)
    with gevent.Timeout(START):
        while front.state not in states:
            changed.wait()
            changed.clear()


@pytest.fixture(scope="package")
def worker() -> FunctionWorker:
    return make_worker()


@pytest.fixture(scope="package")
def front(worker: FunctionWorker) -> Iterator[GrpcFront]:
    with serving(worker) as front:
        yield front


@pytest.fixture(autouse=True)
def calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forgets the calls of the test before; no call of this one is left running."""
    if "worker" not in request.fixturenames:
        yield
        return
    worker: FunctionWorker = request.getfixturevalue("worker")
    worker.calls.clear()
    yield
    with gevent.Timeout(START):
        while worker.n_running:
            gevent.sleep(0.001)
