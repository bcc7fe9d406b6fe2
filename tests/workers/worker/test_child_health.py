"""The author's health check, and what it must not hold up: the real child, over real channels."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from corosrv.contracts.jobs.setup import Cancelled
from corosrv.workers.wire.messages import HealthCheck, HealthCheckResult
from corosrv.workers.worker.child.child import HealthcheckRunner
from tests.support.worker_child import ChildProcess, write_predictor

FAILED = "Healthcheck failed"
CHECKS = {
    "none": ("", None),
    "True": ("def healthcheck(self): return True", None),
    "None": ("def healthcheck(self): pass", None),
    "False": ("def healthcheck(self): return False", f"{FAILED}: user-defined healthcheck returned False"),
    "raises": ("def healthcheck(self): raise OSError('no GPU')", f"{FAILED}: OSError: no GPU"),
    "exits": ("def healthcheck(self): raise SystemExit(2)", f"{FAILED}: SystemExit: 2"),
    "coroutine": ("async def healthcheck(self): return False", f"{FAILED}: user-defined healthcheck returned False"),
}


@pytest.mark.parametrize("run", ["def run(self) -> str: ...", "async def run(self) -> str: ..."])
@pytest.mark.parametrize(("check", "reason"), CHECKS.values(), ids=CHECKS)
def test_a_check_says_how_it_is(tmp_path: Path, check: str, reason: str | None, run: str) -> None:
    path = write_predictor(tmp_path, f"class P:\n    {run}\n    {check}\n")

    with ChildProcess(f"{path}:P") as child:
        child.set_up()

        expected = HealthCheckResult("h", "unhealthy", reason) if reason else HealthCheckResult("h", "healthy")
        assert child.check_health() == expected


def test_a_coroutine_runs_on_the_loop_of_the_predictions(tmp_path: Path) -> None:
    source = """
import asyncio
class P:
    async def setup(self): self.loop = asyncio.get_running_loop()
    async def run(self) -> str: ...
    async def healthcheck(self): return asyncio.get_running_loop() is self.loop
"""
    with ChildProcess(f"{write_predictor(tmp_path, source)}:P") as child:
        child.set_up()

        assert child.check_health().status == "healthy"


def test_a_hanging_check_holds_up_neither_cancels_nor_predictions(tmp_path: Path) -> None:
    source = """
import threading
class P:
    def run(self, spin: bool) -> str:
        print("on")
        while spin: pass
        return "done"
    def healthcheck(self):
        print("hangs")
        threading.Event().wait()
"""
    with ChildProcess(f"{write_predictor(tmp_path, source)}:P") as child:
        child.set_up()
        child.control.send(HealthCheck("h"))
        child.await_server_log("hangs")
        child.start(spin=True)
        child.await_log("on")

        child.cancel()

        assert isinstance(child.hear().end, Cancelled)
        assert child.predict(spin=False).chunks == ["done"]


class _Answers:
    def __init__(self) -> None:
        self.given: SimpleQueue[tuple[str, str | None]] = SimpleQueue()

    def __call__(self, id: str, reason: str | None) -> None:
        self.given.put((id, reason))

    def next(self) -> tuple[str, str | None]:
        return self.given.get(timeout=10)


def test_a_check_that_hangs_is_answered_for_and_no_other_is_begun() -> None:
    release, begun, answers = threading.Event(), [], _Answers()

    def check() -> None:
        begun.append(True)
        release.wait(10)

    checks = HealthcheckRunner(check, answers, limit=0.05)
    checks.ask("first")
    assert answers.next() == ("first", f"{FAILED}: user-defined healthcheck timed out after 0.1 seconds")
    checks.ask("second")
    assert answers.next() == ("second", f"{FAILED}: user-defined healthcheck timed out after 0.1 seconds")
    checks.ask("third")
    release.set()

    assert answers.next()[0] == "third"
    assert begun == [True]


def test_who_asks_meanwhile_shares_the_answer() -> None:
    release, begun, answers = threading.Event(), [], _Answers()

    def check() -> bool:
        begun.append(True)
        release.wait(10)
        return False

    checks = HealthcheckRunner(check, answers)
    checks.ask("first")
    checks.ask("second")
    release.set()

    assert [answers.next(), answers.next()] == [
        ("first", f"{FAILED}: user-defined healthcheck returned False"),
        ("second", f"{FAILED}: user-defined healthcheck returned False"),
    ]
    assert begun == [True]
