"""Copies that user code forks and lets come back: the real child, over real channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from corosrv.contracts.jobs.setup import Done
from tests.support.worker_child import ChildProcess, write_predictor


@pytest.fixture(params=["sync", "async"])
def child(request: pytest.FixtureRequest) -> ChildProcess:
    process: ChildProcess = request.getfixturevalue(f"{request.param}_child")
    return process


@pytest.mark.parametrize(("do", "code"), [("fork_returns", 0), ("fork_exits", 7), ("fork_fails", 1)])
def test_a_copy_that_comes_back_ends_with_the_code_of_a_script(child: ChildProcess, do: str, code: int) -> None:
    heard = child.predict(do=do, text="in the copy", number=7)

    assert (heard.chunks, type(heard.end)) == ([code], Done)
    assert isinstance(child.predict(do="echo").end, Done)


def test_a_copys_error_is_printed_by_the_copy(sync_child: ChildProcess) -> None:
    heard = sync_child.predict(do="fork_fails", text="in the copy")

    assert "ValueError: in the copy" in heard.logs


def test_a_copy_ends_where_it_would_yield(sync_child: ChildProcess) -> None:
    heard = sync_child.predict(do="fork_yields")

    assert (heard.chunks, heard.logs) == ([0, 0], "")


def test_a_copy_ends_where_it_would_run_the_loop(async_child: ChildProcess) -> None:
    heard = async_child.predict(do="fork_awaits")

    assert (heard.chunks, heard.logs) == ([0], "")


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(4)"])
def test_a_copy_does_not_set_up_a_second_worker(tmp_path: Path, end: str) -> None:
    source = f"""
import os
class P:
    def setup(self):
        self.pid = os.fork()
        if not self.pid:
            {end}
    def run(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
"""
    with ChildProcess(f"{write_predictor(tmp_path, source)}:P") as child:
        child.set_up()

        assert child.predict().chunks == [4 if "4" in end else 0]
