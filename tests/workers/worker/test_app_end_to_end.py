"""The server's side and the real app worker: what only both together show."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corosrv.base.errors import CallCancelled, CallRefused, DeadlinePassed, HandlerFailed, WorkerLost
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.formats.tensors import Tensor
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from corosrv.workers.worker.parent.call_services import CallServices
from tests.support.function_worker import FunctionCall, FunctionWorker
from tests.support.waiting import wait_until
from tests.workers.worker.app_handling import TIMEOUT, Recorder, counters, hand, item, ready, started, wait_for
from tests.workers.worker.predicting import is_alive, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]

REAL = AppWorkerConfig(app_ref="").command

APP = """
    import asyncio, os, signal, sys, time
    from corosrv.worker import App, InvalidInput, ModelInferResponse, Tensor, TensorSpec, Worker

    app = App("test")
    X = [TensorSpec("x", "INT32", [-1])]
    BYTES = [TensorSpec("x", "UINT8", [-1])]

    @app.model("double", inputs=X, outputs=X)
    def double(request):
        print("doubling")
        return {"x": [2 * number for number in request.get_input("x").data]}

    @app.model("large", inputs=BYTES, outputs=BYTES)
    def large(request):
        tensor = request.get_input("x")
        return ModelInferResponse([Tensor("x", "UINT8", tensor.shape, raw=bytes(tensor.raw))])

    @app.model("fails", inputs=X, outputs=X)
    def fails(request):
        raise ValueError("a secret")

    @app.model("refuses", inputs=X, outputs=X)
    def refuses(request):
        raise InvalidInput("x is too hot")

    @app.model("lies", inputs=X, outputs=X)
    def lies(request):
        return {"y": [1]}

    @app.model("sleeps", inputs=X, outputs=X, concurrency=2)
    async def sleeps(request):
        await asyncio.sleep(600)

    @app.model("ignores", inputs=X, outputs=X)
    def ignores(request):
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass

    @app.model("counts", inputs=X, outputs=X)
    def counts(request):
        for number in range(request.get_input("x").data[0]):
            yield {"x": [number]}

    @app.model("together", inputs=X, outputs=X, batch={"max_size": 8, "max_delay_ms": 1})
    def together(requests):
        return [{"x": [len(requests), *request.get_input("x").data]} for request in requests]

    @app.model("exits", inputs=X, outputs=X)
    def exits(request):
        os._exit(7)

    @app.model("asks", inputs=X, outputs=X)
    def asks(request, context):
        return {"x": context.call(model="five", inputs={}).outputs[0].data}

    @app.worker(models=["state"], min=1, max=2)
    class State(Worker):
        def on_start(self):
            print("starting")

        def on_stop(self):
            print("stopping")

        def handle(self, request, context):
            return {"n": [os.getpid()]}
"""


@pytest.fixture(scope="module")
def app_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("app")
    (directory / "application.py").write_text(textwrap.dedent(APP))
    return directory


@contextlib.contextmanager
def serving(app_dir: Path, pool: str = "default", **config: Any) -> Iterator[AppProcess]:
    with ready("application:app", pool, app_dir=str(app_dir), command=REAL, **config) as worker:
        yield worker


@pytest.fixture(scope="module")
def worker(app_dir: Path) -> Iterator[AppProcess]:
    with serving(app_dir) as worker:
        yield worker


def run(worker: AppProcess, name: str, *numbers: int, **details: Any) -> Recorder:
    return hand(worker, item(inputs=[vector(*numbers)], **details), handler=position(worker, name))


def position(worker: AppProcess, name: str) -> int:
    return [card.name for card in worker.handlers].index(name)


def vector(*numbers: int) -> Tensor:
    return Tensor("x", "INT32", [len(numbers)], data=numbers)


def numbers_of(recorder: Recorder, item: int = 0) -> list[list[int]]:
    return [outputs.outputs[0].data for outputs in recorder.outputs[item]]


def test_a_function_answers_and_what_it_prints_is_logged(worker: AppProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "corosrv.handler"):
        double = run(worker, "double", 1, 2, request_id="r1")
        assert double.wait_until_over() == [None]

    assert numbers_of(double) == [[2, 4]]
    assert caplog.messages == [f"default/0[{worker.pid}] r1 stdout: doubling"]


def test_large_tensors_go_there_and_back(worker: AppProcess) -> None:
    content = os.urandom(3 << 20)
    large = hand(
        worker, item(inputs=[Tensor("x", "UINT8", [len(content)], raw=content)]), handler=position(worker, "large")
    )

    assert large.wait_until_over() == [None]

    assert bytes(large.outputs[0][0].outputs[0].raw) == content


def test_the_words_of_an_exception_go_to_the_log_alone(worker: AppProcess, caplog: pytest.LogCaptureFixture) -> None:
    (error,) = run(worker, "fails", 1, request_id="r2").wait_until_over()

    assert isinstance(error, HandlerFailed)
    assert "secret" not in str(error)
    assert "request r2: the handler failed" in caplog.text
    assert "ValueError: a secret" in caplog.text


def test_a_refusal_is_in_the_handlers_own_words(worker: AppProcess) -> None:
    (error,) = run(worker, "refuses", 1).wait_until_over()

    assert isinstance(error, CallRefused)
    assert str(error) == "x is too hot"


def test_an_undeclared_output_fails_its_call(worker: AppProcess) -> None:
    assert isinstance(run(worker, "lies", 1).wait_until_over()[0], HandlerFailed)


def test_a_generator_streams(worker: AppProcess) -> None:
    counts = hand(worker, item(inputs=[vector(40)]), handler=position(worker, "counts"), stream=True)

    assert counts.wait_until_over() == [None]

    assert [number for number, *_ in numbers_of(counts) if _ == []][:40] == list(range(40))


def test_a_batch_keeps_its_answers_apart(worker: AppProcess) -> None:
    batch = hand(worker, *(item(inputs=[vector(number)]) for number in range(4)), handler=position(worker, "together"))

    assert batch.wait_until_over() == [None] * 4

    assert [numbers_of(batch, number) for number in range(4)] == [[[4, number]] for number in range(4)]


def test_a_cancel_ends_a_coroutine_and_a_deadline_another(worker: AppProcess) -> None:
    cancelled, overdue = run(worker, "sleeps"), run(worker, "sleeps", timeout=0.2)
    cancelled.call.cancel()

    assert isinstance(cancelled.wait_until_over()[0], CallCancelled)
    assert isinstance(overdue.wait_until_over()[0], DeadlinePassed)


def test_a_call_that_is_cancelled_in_the_moment_of_its_start_ends(worker: AppProcess) -> None:
    for _ in range(20):
        recorder = run(worker, "sleeps")
        recorder.call.cancel()

        assert isinstance(recorder.wait_until_over()[0], CallCancelled)


def test_real_heartbeats_come(worker: AppProcess) -> None:
    wait_until(lambda: worker.last_heartbeat)

    assert worker.rss > 1 << 20


def test_handlers_ask_through_the_server(app_dir: Path) -> None:
    models = FunctionWorker()

    def five(call: FunctionCall) -> None:
        call.send(vector(5))

    models.add(five, "five")
    with serving(app_dir, services=CallServices(models.submit)) as worker:
        asks = run(worker, "asks", 1, request_id="r6")

        assert asks.wait_until_over() == [None]

        assert numbers_of(asks) == [[5]]
        assert models.calls[0].job.terms.request_id == "r6"


def test_a_handler_that_ends_the_process_loses_its_calls(app_dir: Path) -> None:
    with serving(app_dir) as worker:
        sleeping = run(worker, "sleeps")

        (error,) = run(worker, "exits", 1).wait_until_over()

        assert isinstance(error, WorkerLost)
        assert isinstance(sleeping.wait_until_over()[0], WorkerLost)
        assert "exit code 7" in worker.reason
        assert len(worker.keys_at_loss) == 2


def test_a_kill_9_is_told_long_before_a_heartbeat_is_missed(app_dir: Path) -> None:
    with serving(app_dir) as worker:
        sleeping = run(worker, "sleeps")
        assert worker.pid is not None
        began = time.monotonic()

        os.kill(worker.pid, signal.SIGKILL)

        assert isinstance(sleeping.wait_until_over()[0], WorkerLost)
        assert sleeping.ended_at - began < 5


def test_a_function_that_ignores_its_cancel_ends_its_worker(app_dir: Path) -> None:
    with serving(app_dir, hang_grace_s=0.5) as worker:
        ignoring = run(worker, "ignores", timeout=0.2)

        assert isinstance(ignoring.wait_until_over()[0], DeadlinePassed)

        wait_for(worker, WorkerState.DEFUNCT)
        assert worker.keys_at_loss == ("model:ignores:",)
        assert "handler 'ignores' went on" in worker.reason
        assert worker.pid is not None
        wait_for_death(worker.pid)


def test_a_stopped_process_is_lost(app_dir: Path) -> None:
    with serving(app_dir, lease_s=3.0) as worker:
        sleeping = run(worker, "sleeps")
        assert worker.pid is not None

        os.kill(worker.pid, signal.SIGSTOP)

        assert isinstance(sleeping.wait_until_over()[0], WorkerLost)
        assert worker.reason == "no heartbeat came for 3 s"


def test_a_signal_to_the_group_does_not_stop_a_worker(app_dir: Path) -> None:
    with serving(app_dir) as worker:
        assert worker.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(worker.pid, number)

        assert run(worker, "double", 4).wait_until_over() == [None]


def test_a_pool_of_a_class_starts_and_stops_it(app_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "corosrv.handler"),
        started("application:app", None, app_dir=str(app_dir), command=REAL) as worker,
    ):
        wait_until(lambda: worker.pools)
        name = next(pool.name for pool in worker.pools if pool.name != "default")
        worker.choose(name)
        wait_for(worker, WorkerState.READY)
        assert [card.name for card in worker.handlers] == ["state"]
        assert "starting" in worker.setup.logs

        worker.drain()

        wait_for(worker, WorkerState.STOPPED)
        assert any(message.endswith("stdout: stopping") for message in caplog.messages)
        assert counters(worker) == (0, 0, 0, 0)
        assert worker.pid is not None
        assert not is_alive(worker.pid)


@pytest.mark.parametrize(
    ("app_ref", "reason"),
    [
        ("nowhere:app", "nowhere"),
        ("application:nothing", "nothing"),
        ("application:X", "X"),
    ],
)
def test_an_application_that_is_not_there_fails_the_start(app_dir: Path, app_ref: str, reason: str) -> None:
    with started(app_ref, app_dir=str(app_dir), command=REAL) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert reason in worker.reason
        worker.stop(TIMEOUT)
        assert worker.pid is not None
        assert not is_alive(worker.pid)
