"""Pools of real worker processes: killed, replaced, drained under load, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
from gevent.event import AsyncResult

from corosrv.base.errors import WorkerLost
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.infer import InferJob, InferOutputs, InferRequest, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.manager.manager import Manager, ManagerSettings
from corosrv.workers.manager.plan import PlaceState
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from tests.support.waiting import wait_until
from tests.workers.manager.scripted import end_of
from tests.workers.worker.predicting import is_alive

APP = """
    import os, time
    from corosrv.workers.worker.app.app import App
    from corosrv.workers.worker.app.pools import BaseWorker
    from corosrv.formats.tensors import TensorSpec

    app = App("test")

    @app.model("pid", outputs=[TensorSpec("pid", "INT64", [1])], concurrency=2)
    def pid(request):
        time.sleep(0.01)
        return {"pid": [os.getpid()]}

    @app.model("sleep", concurrency=2)
    def sleep(request, context):
        context.sleep(60)

    @app.worker(models=["counter"])
    class Counter(BaseWorker):
        def on_start(self):
            if os.path.exists("broken"):
                raise ValueError("the file broken is there")

        def on_stop(self):
            open("stopped", "w").close()

        def handle(self, request, context):
            return {}
"""


@contextlib.contextmanager
def managed(folder: Path, app: str = APP, **settings: object) -> Iterator[Manager]:
    (folder / "some_app.py").write_text(textwrap.dedent(app))
    config = AppWorkerConfig(app_ref="some_app:app", app_dir=str(folder), cwd=str(folder))
    dispatcher = Dispatcher()
    options = {name: settings.pop(name) for name in ("on_unstartable", "clock") if name in settings}
    manager = Manager(ManagerSettings(**settings), lambda *place: AppProcess(config, *place), dispatcher, **options)
    manager.dispatcher = dispatcher
    manager.start()
    try:
        yield manager
    finally:
        workers = manager._workers()
        manager.close()
        for worker in workers:
            worker.stop(0.0)


def call(manager: Manager, model: str = "pid"):
    terms = Terms(deadline=time.monotonic() + 60)
    return manager.dispatcher.submit(InferJob(ModelTarget(model), InferRequest(), terms=terms))


def answer_of(reader) -> int:
    """The process that answered a call."""
    with gevent.Timeout(60):
        items = []
        while len(items) < 2:
            items += reader.take()
    assert items[-1].error is None
    assert isinstance(items[0], InferOutputs)
    return items[0].outputs[0].data[0]


def pids(manager: Manager) -> dict[str, int]:
    return {
        place.id: place.worker.pid for pool in manager.pools for place in pool.places if place.state is PlaceState.READY
    }


def test_an_application_runs_in_as_many_processes_as_asked(tmp_path: Path):
    with managed(tmp_path, workers=2) as manager:
        wait_until(lambda: manager.state is State.READY and len(pids(manager)) == 3)

        assert sorted(pids(manager)) == ["Counter/0", "default/0", "default/1"]
        assert {answer_of(call(manager)) for _ in range(8)} == {pids(manager)[f"default/{n}"] for n in (0, 1)}


def test_a_killed_process_fails_its_calls_and_is_replaced(tmp_path: Path):
    with managed(tmp_path) as manager:
        wait_until(lambda: manager.state is State.READY)
        sleeping, victim = call(manager, "sleep"), pids(manager)["default/0"]
        wait_until(lambda: manager.place("default/0").worker.in_flight)

        os.kill(victim, signal.SIGKILL)

        assert isinstance(end_of(sleeping).error, WorkerLost)
        assert answer_of(call(manager)) != victim
        assert manager.place("default/0").incarnation == 2


def test_every_process_is_replaced_under_load_and_no_call_is_lost(tmp_path: Path):
    with managed(tmp_path, workers=2) as manager:
        wait_until(lambda: manager.state is State.READY and len(pids(manager)) == 3)
        before = set(pids(manager).values())
        answers: list[int] = []

        def ask() -> None:
            while len(pids(manager)) != 3 or set(pids(manager).values()) & before:
                answers.append(answer_of(call(manager)))

        asking = [gevent.spawn(ask) for _ in range(6)]
        for worker_id in list(pids(manager)):
            manager.drain(worker_id)
        gevent.joinall(asking, timeout=120, raise_error=True)

        assert all(greenlet.successful() for greenlet in asking)
        assert set(answers) & before
        assert set(answers) - before
        wait_until(lambda: not any(map(is_alive, before)))


def test_an_import_that_fails_is_the_reason_to_give_up(tmp_path: Path):
    told = AsyncResult()
    passed = [0.0]
    options = {"on_unstartable": told.set, "clock": lambda: passed[0] + time.monotonic()}
    with managed(tmp_path, "import nothing_like_this", start_timeout=1000.0, **options) as manager:
        wait_until(lambda: manager.failure)
        passed[0] = 1000.0
        manager._wakeup()

        assert "nothing_like_this" in told.get(timeout=30)


def test_a_pool_that_cannot_start_leaves_the_others_alone(tmp_path: Path):
    (tmp_path / "broken").touch()
    with managed(tmp_path) as manager:
        wait_until(lambda: manager.pools and manager.pool("Counter").memory.crashes.has_crashed)
        wait_until(lambda: "default/0" in pids(manager))

        answer_of(call(manager))

        assert "the file broken is there" in manager.pool("Counter").memory.crashes.last_reason
        (tmp_path / "broken").unlink()
        wait_until(lambda: manager.state is State.READY)


def test_a_stop_runs_on_stop_and_leaves_no_process(tmp_path: Path):
    with managed(tmp_path, shutdown_grace=0.2) as manager:
        wait_until(lambda: manager.state is State.READY)
        processes = list(pids(manager).values())
        sleeping = call(manager, "sleep")

        manager.stop()
        wait_until(lambda: not manager.is_ending)

        assert end_of(sleeping).error is not None
        assert not any(map(is_alive, processes))
        assert (tmp_path / "stopped").exists()


def test_a_close_leaves_no_process(tmp_path: Path):
    with managed(tmp_path) as manager:
        wait_until(lambda: manager.state is State.READY)
        processes = list(pids(manager).values())

        manager.close()

        wait_until(lambda: not any(map(is_alive, processes)))
