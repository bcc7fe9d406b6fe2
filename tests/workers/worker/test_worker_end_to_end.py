"""The server's side and the real child: what only both together show."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, LogLine, OutputChunk, WorkerState
from corosrv.workers.worker.parent.predict_call import PredictReader
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.workers.worker.predicting import TIMEOUT, counters, read, started, wait_for, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]

REAL = WorkerConfig(predictor="").command

SYNC = """
    import os, sys, time
    from corosrv.worker import BasePredictor

    class Predictor(BasePredictor):
        def setup(self):
            print("set up", flush=True)

        def run(self, do: str, n: int = 0) -> str:
            print(do)
            if do == "exit":
                os._exit(n)
            if do == "loop":
                while True:
                    pass
            if do == "raise":
                raise ValueError("no")
            return do * n
"""

ASYNC = """
    import asyncio
    from corosrv.worker import BasePredictor, concurrent

    class Predictor(BasePredictor):
        @concurrent(max=5)
        async def run(self, do: str) -> str:
            print(do)
            if do == "wait":
                await asyncio.Event().wait()
            return do
"""

HOLDS_INTERPRETER = """
    import ctypes
    from corosrv.worker import BasePredictor

    class Predictor(BasePredictor):
        def run(self) -> None:
            print("on", flush=True)
            ctypes.PyDLL(None).sleep(60)
"""

STREAM = """
    from collections.abc import Iterator
    from corosrv.worker import BasePredictor

    class Predictor(BasePredictor):
        def run(self, n: int, size: int) -> Iterator[str]:
            for _ in range(n):
                yield "x" * size
"""


@contextmanager
def serving(directory: Path, source: str, **config: Any) -> Iterator[PredictorProcess]:
    file = directory / "predict.py"
    file.write_text(textwrap.dedent(source))
    with started(f"{file}:Predictor", command=REAL, **config) as worker:
        wait_for(worker, WorkerState.READY)
        yield worker


def predict(worker: PredictorProcess, directory: Path, **arguments: Any) -> PredictReader:
    return worker.submit(PredictJob(f"p{os.urandom(4).hex()}", arguments, str(directory)))


def test_a_predictor_is_set_up_and_predicts(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        messages = read(predict(worker, tmp_path, do="hello", n=2))

        assert worker.setup.logs == "set up\n"
        assert worker.schema is not None
        assert "Input" in worker.schema["components"]["schemas"]
        assert messages[:2] == [LogLine("stdout", "hello\n"), OutputChunk("hellohello", 0)]
        assert isinstance(messages[-1], Done)
        assert worker.check_health() is None


def test_a_predictor_without_a_check_is_well_also_while_native_code_holds_the_interpreter(tmp_path: Path) -> None:
    with serving(tmp_path, HOLDS_INTERPRETER) as worker:
        predict(worker, tmp_path).take(TIMEOUT)

        assert worker.check_health() is None


def test_five_hundred_in_a_row_never_find_the_slot_taken(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        for _ in range(500):
            assert counters(worker) == (1, 0, 0)
            assert isinstance(read(predict(worker, tmp_path, do="x"))[-1], Done)


def test_an_error_is_the_predictions_own(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        last = read(predict(worker, tmp_path, do="raise"))[-1]

        assert isinstance(last, Failed)
        assert last.error == "ValueError: no"
        assert counters(worker) == (1, 0, 0)


def test_a_crash_is_told_with_what_was_printed_before(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        *_, last = read(predict(worker, tmp_path, do="exit", n=3))

        assert isinstance(last, Failed)
        assert "crashed with exit code 3" in last.error
        assert worker.state is WorkerState.DEFUNCT


def test_a_sync_loop_is_cancelled_and_its_slot_is_free_again(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        reader = predict(worker, tmp_path, do="loop")
        reader.take(TIMEOUT)

        reader.cancel()

        assert isinstance(read(reader)[-1], Cancelled)
        assert isinstance(read(predict(worker, tmp_path, do="x"))[-1], Done)


def test_the_decorator_says_how_many_run_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, ASYNC) as worker:
        assert counters(worker) == (5, 0, 0)
        waiting = [predict(worker, tmp_path, do="wait") for _ in range(4)]

        assert isinstance(read(predict(worker, tmp_path, do="x"))[-1], Done)
        for reader in waiting:
            reader.cancel()
        assert all(isinstance(read(reader)[-1], Cancelled) for reader in waiting)
        assert counters(worker) == (5, 0, 0)


def test_a_reader_that_nobody_reads_holds_its_generator_and_can_be_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path, STREAM) as worker:
        reader = predict(worker, tmp_path, n=1_000_000, size=10_000)
        reader.take(TIMEOUT)
        while worker.check_health() is not None:  # health is asked beside the flood
            gevent.sleep(0)

        reader.cancel()

        *chunks, last = read(reader)
        assert isinstance(last, Cancelled)
        assert len(chunks) < 1000


def test_outputs_that_no_frame_holds_come_in_files(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        messages = read(predict(worker, tmp_path, do="0123456789", n=1_000_000))

        assert isinstance(messages[-1], Done)
        assert any(type(message).__name__ == "FileOutput" for message in messages)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('at import')", "at import"),
        ("class Predictor:\n    def setup(self): raise SystemExit(4)\n    def run(self) -> str: ...", "SystemExit"),
        ("import os\nprint('so far', flush=True)\nos._exit(9)", "exit code 9"),
        ("class Predictor: pass", "run"),
        ("def Predictor(:", "SyntaxError"),
    ],
)
def test_a_set_up_that_fails_says_why_in_its_logs(tmp_path: Path, source: str, reason: str) -> None:
    file = tmp_path / "predict.py"
    file.write_text(source)
    with started(f"{file}:Predictor", command=REAL) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert reason in worker.setup.logs
        assert reason in worker.reason
        assert worker.pid is not None
        wait_for_death(worker.pid)


def test_a_set_up_that_hangs_times_out_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "predict.py"
    sleep = "subprocess.Popen(['sleep', '60'])"
    file.write_text(f"import subprocess\nchild = {sleep}\nprint(child.pid, flush=True)\nchild.wait()")
    for setup_timeout in (2.0, 8.0, 25.0):
        with started(f"{file}:Predictor", command=REAL, setup_timeout=setup_timeout) as worker:
            wait_for(worker, WorkerState.SETUP_FAILED)

            assert "timed out" in worker.reason
            assert worker.pid is not None
            if worker.setup.logs:  # else a busy machine had no time to start the child
                wait_for_death(int(worker.setup.logs.split()[0]))
                wait_for_death(worker.pid)
                return
    pytest.fail("no child was started in time")


def test_an_idle_worker_stops_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker, gevent.Timeout(TIMEOUT):
        worker.stop(10 * TIMEOUT)

        assert worker.state is WorkerState.STOPPED


def test_a_stop_lets_what_runs_end(tmp_path: Path) -> None:
    with serving(tmp_path, STREAM) as worker:
        reader = predict(worker, tmp_path, n=300, size=10_000)
        reader.take(TIMEOUT)
        stopping = gevent.spawn(worker.stop, TIMEOUT)

        assert isinstance(read(reader)[-1], Done)
        stopping.get(timeout=TIMEOUT)
        assert worker.state is WorkerState.STOPPED


def test_what_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, SYNC) as worker:
        reader = predict(worker, tmp_path, do="loop")
        reader.take(TIMEOUT)

        worker.stop(0.2)

        last = read(reader)[-1]
        assert isinstance(last, Failed)
        assert last.error == "server shut down"


def test_a_worker_that_is_killed_while_idle_is_defunct_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, ASYNC) as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)

        wait_for(worker, WorkerState.DEFUNCT)
        assert counters(worker) == (0, 0, 5)
