"""The start and the end of an application's worker: the real child, over real channels."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from corosrv.base.errors import ChannelClosed
from corosrv.workers.wire.calls import PROTOCOL, StartPool
from corosrv.workers.wire.messages import Fatal
from tests.support.app_child import TIMEOUT, AppChildProcess, number, write_app

COUNTER = """
    @app.worker(models=["counter", "total"], capabilities=[{"type": "count"}], min=0, max=4, gpus=1, memory_mb=100,
                cold_start_ms=50, priority=3, concurrency=2, outputs=[TensorSpec("n", "INT32", [1])])
    class Counter(Worker):
        def on_start(self):
            print("starts")
            self.n = 0
        def on_stop(self):
            print("stops at", self.n)
        def handle(self, request):
            self.n += 1
            return {"n": [self.n]}

    @app.model("one", outputs=[TensorSpec("n", "INT32", [1])])
    def one(request):
        return {"n": [1]}
"""


def test_an_application_says_its_pools_before_anything_starts(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path) as child:
        functions, counter = child.load().pools

        assert child.log == ""
    assert (functions.name, functions.min_workers, [card.name for card in functions.handlers]) == (
        "default",
        None,
        ["one"],
    )
    assert (counter.name, counter.min_workers, counter.max_workers, counter.priority) == ("Counter", 0, 4, 3)
    assert (counter.gpus, counter.memory_mb, counter.cold_start_ms) == (1, 100, 50)
    assert [(card.name, card.group, card.concurrency) for card in counter.handlers] == [
        ("counter", 0, 2),
        ("total", 0, 2),
        ("Counter", 0, 2),
    ]


def test_a_class_is_started_before_it_registers_and_keeps_what_it_has(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path) as child:
        child.start("Counter")

        assert child.log == "starts\n"
        assert [child.call("counter").only, child.call("total").only] == [{"n": [1]}, {"n": [2]}]


def test_a_class_is_stopped_with_its_worker(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path) as child:
        child.start("Counter")
        child.call("counter")

        assert child.stop() == 0
        assert child.log == "starts\nstops at 1\n"


def test_a_class_may_be_of_coroutines(tmp_path: Path) -> None:
    source = """
        import asyncio
        @app.worker(models=["m"])
        class Async(Worker):
            async def on_start(self):
                self.loop = asyncio.get_running_loop()
            async def on_cleanup(self):
                print(asyncio.get_running_loop() is self.loop)
            async def handle(self, request, context):
                yield ModelInferResponse(parameters={"same": asyncio.get_running_loop() is self.loop})
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.start("Async")

        assert child.call("m").parameters == [{"same": True}]
        assert child.stop() == 0
        assert child.log == "True\n"


@pytest.mark.parametrize("end", ["raise ValueError('no')", "raise SystemExit(3)", "import os; os.fork() or 1 / 0"])
def test_an_on_stop_that_fails_is_logged_and_no_more(tmp_path: Path, end: str) -> None:
    source = f"""
        @app.worker(models=["m"])
        class Stuck(Worker):
            def handle(self, request): ...
            def on_stop(self):
                {end}
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.start("Stuck")

        assert child.stop() == 0


def test_an_on_stop_has_its_time(tmp_path: Path) -> None:
    source = """
        import time
        @app.worker(models=["m"])
        class Stuck(Worker):
            def handle(self, request): ...
            def on_stop(self):
                time.sleep(60)
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.start("Stuck")

        assert child.stop(grace_ms=50) == 0


def test_a_factory_makes_the_application(tmp_path: Path) -> None:
    write_app(tmp_path, "app.model('m')(lambda request: {})\ndef make(): return app")
    with AppChildProcess("the_app:make", tmp_path, is_factory=True) as child:
        assert [card.name for card in child.start().handlers] == ["m"]


def test_an_application_may_be_a_file(tmp_path: Path) -> None:
    write_app(tmp_path, "app.model('m')(lambda request: {})")
    with AppChildProcess(f"{tmp_path / 'the_app.py'}:app", tmp_path) as child:
        assert [card.name for card in child.start().handlers] == ["m"]


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with AppChildProcess(f"{tmp_path / 'missing.py'}:app", tmp_path) as child:
        assert child.hear_failure().startswith(f"LoadError: there is no file {tmp_path / 'missing.py'}")


def test_what_the_package_around_the_application_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import nowhere_to_be_found")
    with AppChildProcess("package.module:app", tmp_path) as child:
        assert child.hear_failure() == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"


def test_neighbours_of_the_application_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'm'")
    reference = write_app(tmp_path, "import neighbour\napp.model(neighbour.NAME)(lambda request: {})")
    with AppChildProcess(reference, tmp_path) as child:
        child.start()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ValueError('at import')", "ValueError: at import"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("del app", "LoadError: the_app has no 'app': name the App, as the_app:NAME"),
        ("app = 3", "LoadError: the_app:app is of type int and no App"),
        ("app = lambda: None", "LoadError: the_app:app is of type function and no App: say --factory if it makes one"),
        ("", "AppError: the_app:app has no handlers: register some with @app.model"),
        ("def f(): ...\napp.model('m')(f)", "AppError: f takes 0 parameters: write it as (request)"),
        (
            "def f(request): ...\nfor _ in 'ab': app.model('m')(f)",
            "AppError: f: the model 'm' is registered already, by f: change one of them",
        ),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_an_application_that_cannot_be_imported_says_why(tmp_path: Path, source: str, error: str) -> None:
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        assert child.hear_failure().startswith(error)


def test_the_traceback_of_an_import_is_in_the_log(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, "print('so far')\nraise ValueError('at import')"), tmp_path) as child:
        child.hear_failure()

        assert child.log.startswith("so far\nTraceback")
        assert "the_app.py" in child.log


def test_a_module_that_is_missing_is_named(tmp_path: Path) -> None:
    with AppChildProcess("missing:app", tmp_path) as child:
        assert child.hear_failure() == (
            "LoadError: there is no module 'missing': "
            "an application is named as MODULE:NAME, looked for in --app-dir, or as FILE.py:NAME"
        )


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 3", "LoadError: the_app:make returned an object of type int and no App"),
        ("raise ValueError('in it')", "ValueError: in it"),
    ],
)
def test_a_factory_that_makes_no_application_is_named(tmp_path: Path, body: str, error: str) -> None:
    write_app(tmp_path, f"def make():\n    {body}")
    with AppChildProcess("the_app:make", tmp_path, is_factory=True) as child:
        assert child.hear_failure() == error


@pytest.mark.parametrize("end", ["raise ValueError('no')", "raise SystemExit(3)"])
@pytest.mark.parametrize("method", ["def on_start", "async def on_start", "def __init__"])
def test_a_class_that_does_not_start_says_why(tmp_path: Path, method: str, end: str) -> None:
    source = f"""
        @app.worker(models=["m"])
        class Broken(Worker):
            {method}(self):
                {end}
            def handle(self, request): ...
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.load()
        child.control.send(StartPool("Broken"))

        assert child.hear_failure() in ("ValueError: no", "SystemExit: 3")
        assert "Traceback" in child.log


def test_a_pool_that_the_application_lacks_is_named(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path) as child:
        child.load()
        child.control.send(StartPool("other"))

        assert child.hear_failure() == "LoadError: the application has no pool 'other'"


def test_another_protocol_is_refused(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path, protocol=PROTOCOL + 1) as child:
        assert child.hear_failure().startswith("LoadError: the server speaks another protocol")


def test_more_lanes_than_slots_end_the_worker(tmp_path: Path) -> None:
    with AppChildProcess(write_app(tmp_path, COUNTER), tmp_path) as child:
        child.start()
        with suppress(ChannelClosed):  # by a worker that has ended as soon as it saw the descriptors
            child.add_lanes(1)

        assert child.hear_control() == Fatal("the control channel is broken: more lanes than the 1 slots of the pool")
        assert child.process.wait(TIMEOUT) == -signal.SIGKILL


def test_a_stop_before_the_start_ends_the_worker_at_once(tmp_path: Path) -> None:
    source = "import time\nprint('imports', flush=True)\ntime.sleep(60)"
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.await_worker_log("imports")

        assert child.stop() == 0


def test_a_worker_ends_while_it_imports_if_its_server_does(tmp_path: Path) -> None:
    source = "import time\nprint('imports', flush=True)\ntime.sleep(60)"
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.await_worker_log("imports")

        child.control.close()

        assert child.process.wait(TIMEOUT) != 0


def test_nothing_of_gevent_or_asyncio_is_imported_for_plain_functions(tmp_path: Path) -> None:
    source = """
        import sys
        @app.model("modules")
        def modules(request):
            return ModelInferResponse(parameters={name: name in sys.modules for name in NAMES})
        NAMES = ["gevent", "asyncio", "numpy", "flask", "google.protobuf", "corosrv._native"]
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.start()

        assert not any(child.call("modules").parameters[0].values())


def test_threads_are_made_by_the_first_call_of_their_slots(tmp_path: Path) -> None:
    source = """
        import threading
        @app.model("threads", concurrency=50, outputs=[TensorSpec("n", "INT32", [1])])
        def threads(request):
            return {"n": [sum(thread.name.startswith("corosrv-slot") for thread in threading.enumerate())]}
    """
    with AppChildProcess(write_app(tmp_path, source), tmp_path) as child:
        child.start()

        assert child.call("threads", slot=7).only == {"n": [1]}
        assert child.call("threads", slot=7).only == {"n": [1]}
        assert child.call("threads", number("n", 1), slot=49).only == {"n": [2]}
