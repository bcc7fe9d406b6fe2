"""Child processes in groups of their own, on any hub, whoever else has children."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import gevent
import gevent.subprocess
import pytest

from corosrv.workers.worker.parent.process import Exit, Process
from tests.support.children import output
from tests.workers.worker.predicting import TIMEOUT, is_alive, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]

PAUSE = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    with gevent.Timeout(30):
        yield


def python(program: str, **options: Any) -> Process:
    return Process([sys.executable, "-S", "-c", program], **options)


def ended(program: str) -> str:
    """How a program ends."""
    process = python(program)
    assert process.wait(TIMEOUT)
    assert not is_alive(process.pid)
    return str(process.exit)


PROGRAMS = [
    ("pass", "exit code 0"),
    ("raise SystemExit(3)", "exit code 3"),
    ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL)"),
    ("import os; os.kill(os.getpid(), 40)", "signal 40"),
]


@pytest.mark.parametrize(("program", "end"), PROGRAMS)
def test_a_process_says_how_it_ended(program: str, end: str) -> None:
    assert ended(program) == end


@pytest.mark.parametrize(("program", "end"), PROGRAMS)
def test_it_does_so_on_the_hub_of_any_thread(program: str, end: str) -> None:
    assert in_thread(lambda: ended(program)) == end


def in_thread(function: Any) -> Any:
    """What a function returns in a thread with a hub of its own."""
    results: list[Any] = []

    def call() -> None:
        results.append(function())
        gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(TIMEOUT)
    return results[0]


def test_an_end_that_somebody_else_has_reaped_is_noticed_all_the_same() -> None:
    def stolen() -> Exit | None:
        process = python("pass")
        os.waitpid(process.pid, 0)
        assert process.wait(TIMEOUT)
        return process.exit

    assert in_thread(stolen) == Exit(None)
    assert str(Exit(None)) == "exit code unknown"


def test_many_ends_at_once_are_all_noticed() -> None:
    processes = [python(f"raise SystemExit({code})") for code in range(8)]

    assert all(process.wait(TIMEOUT) for process in processes)
    assert [process.exit for process in processes] == [Exit(code) for code in range(8)]


def test_other_peoples_children_do_not_take_the_status() -> None:
    process = python("raise SystemExit(3)")

    for _ in range(3):
        gevent.subprocess.run(["/bin/true"], check=True)

    assert process.wait(TIMEOUT)
    assert process.exit == Exit(3)


def test_a_process_leads_a_group_and_a_session_of_its_own() -> None:
    process = python(PAUSE)

    assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
    process.kill()
    assert process.wait(TIMEOUT)


@pytest.mark.parametrize("way", ["terminate", "kill", "exit"])
def test_the_rest_of_its_group_ends_with_it(way: str) -> None:
    read, write = os.pipe()
    try:
        family = (
            f"import os, signal, subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-S', '-c', {PAUSE!r}], stdout=subprocess.PIPE)\n"
            f"child.stdout.readline()\n"
            f"os.write({write}, b'%d' % child.pid)\n"
            f"os._exit(0) if {way!r} == 'exit' else signal.pause()"
        )
        process = python(family, inherited=[write])
        grandchild = int(gevent.get_hub().threadpool.apply(os.read, (read, 20)))
    finally:
        os.close(read)
        os.close(write)

    if way != "exit":
        getattr(process, way)()

    assert process.wait(TIMEOUT)
    wait_for_death(grandchild)


def test_a_stopped_process_can_be_killed_and_is_not_over_before() -> None:
    process = python(PAUSE)
    os.kill(process.pid, signal.SIGSTOP)

    assert not process.wait(0.05)
    process.kill()

    assert process.wait(TIMEOUT)
    assert process.exit == Exit(-signal.SIGKILL)


def test_nothing_is_signalled_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = python("pass")
    assert process.wait(TIMEOUT)
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))

    process.kill()
    process.terminate()

    assert signalled == []


@pytest.mark.parametrize(("command", "cwd"), [(["/proc/nowhere"], None), (["/bin/true"], "/proc/nowhere")])
def test_what_cannot_be_started_raises(command: list[str], cwd: str | None) -> None:
    with pytest.raises(FileNotFoundError):
        Process(command, cwd=cwd)


PATCHED = ["", "from gevent import monkey; monkey.patch_all()"]


@pytest.mark.parametrize("patch", PATCHED)
def test_a_worker_runs_in_a_process_that_is_patched_or_not(patch: str) -> None:
    program = f"""
        {patch}
        import gevent.subprocess
        from tests.workers.worker.predicting import counters, read, ready, submit
        with ready(slots=2) as worker:
            gevent.subprocess.run(["/bin/true"])
            read(submit(worker))
            print(counters(worker), worker.check_health())
            print(read(submit(worker, "exit", code=3))[-1].error)
    """

    assert output(program).splitlines() == ["(2, 0, 0) None", "the worker crashed with exit code 3"]


@pytest.mark.parametrize("patch", PATCHED)
def test_a_command_that_does_not_exist_is_told_in_a_process_that_is_patched_or_not(patch: str) -> None:
    program = f"""
        {patch}
        from tests.workers.worker.predicting import WorkerState, started, wait_for
        with started(command=("/proc/nowhere/python",)) as worker:
            wait_for(worker, WorkerState.SETUP_FAILED)
            print(worker.reason)
    """

    assert "No such file or directory: '/proc/nowhere/python'" in output(program)


def test_workers_see_the_end_of_their_server_each_by_itself() -> None:
    pids = output("""
        import os
        from tests.workers.worker.predicting import ready, submit
        with ready(slots=2) as first, ready() as second:
            submit(first, "hang").take(10)
            print(first.pid, second.pid, flush=True)
            os._exit(0)
    """)

    for pid in pids.split():
        wait_for_death(int(pid))
