"""What is printed belongs to the prediction that printed it: the real child, over real channels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.contracts.jobs.setup import Cancelled, Done, LogLine
from corosrv.workers.wire.messages import DroppedLogs, Log
from tests.support.worker_child import ChildProcess, names, write_predictor

PREDICTORS = Path(__file__).parent.parent.parent / "predictors"


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    with ChildProcess(f"{PREDICTORS / 'sync_basics.py'}:Predictor") as child:
        child.set_up()
        yield child


@pytest.fixture
def async_child() -> Iterator[ChildProcess]:
    with ChildProcess(f"{PREDICTORS / 'async_basics.py'}:Predictor", slots=8) as child:
        child.set_up()
        yield child


def test_both_streams_arrive_in_order(child: ChildProcess) -> None:
    heard = child.predict(do="both")

    assert [(line.source, line.data) for line in heard if isinstance(line, LogLine)] == [
        ("stdout", "out\n"),
        ("stderr", "err\n"),
        ("stdout", "bytes\n"),
        ("stdout", "end"),
    ]


def test_an_unterminated_line_stays_in_its_own_prediction(child: ChildProcess) -> None:
    assert child.predict(do="unterminated", text="mine").logs == "mine"
    assert child.predict(do="unterminated", text="other").logs == "other"


def test_child_processes_belong_to_the_prediction(child: ChildProcess) -> None:
    heard = child.predict(do="child")

    assert "from the child\n" in heard.logs
    assert "its errors\n" in heard.logs
    assert "unterminated" in heard.logs
    assert isinstance(heard.end, Done)


def test_c_code_belongs_to_the_prediction(child: ChildProcess) -> None:
    assert child.predict(do="c_code").logs == "from C\nheld back"
    assert child.predict(do="echo").logs == ""


@pytest.mark.parametrize("environ", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_c_code_prints_whole_lines(environ: dict[str, str]) -> None:
    source = """
import ctypes, os, socket
from corosrv.workers.worker.capture import _line_buffered_c_output
there, here = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps writes apart
os.dup2(here.fileno(), 1)
flush = _line_buffered_c_output()
libc = ctypes.CDLL(None)
for number in range(2):
    libc.printf(b"line ")
    libc.printf(b"%d\\n", number)
libc.printf(b"no end")
flush()
os.write(2, repr([there.recv(100) for _ in range(3)]).encode())
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-c", source], env=clean | environ, capture_output=True, text=True, timeout=20, check=True
    )

    assert ended.stderr == "[b'line 0\\n', b'line 1\\n', b'no end']"


def test_forked_processes_belong_to_the_prediction_and_touch_no_channel(child: ChildProcess) -> None:
    heard = child.predict(do="forked", text="from a fork")

    assert heard.logs == "from a fork\n"
    assert names(heard) == ["LogLine", "OutputChunk", "Done"]


def test_threads_belong_to_the_prediction_that_started_them(child: ChildProcess) -> None:
    heard = child.predict(do="threads", text="from a thread")

    assert heard.logs == "from a thread\n"
    assert "Metric" in names(heard)


def test_the_error_that_ends_a_thread_is_in_the_logs(tmp_path: Path) -> None:
    source = """
import threading
def run() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
"""
    with ChildProcess(f"{write_predictor(tmp_path, source)}:run") as child:
        child.set_up()

        assert "ZeroDivisionError: division by zero" in child.predict().logs


def test_what_a_leftover_thread_prints_goes_to_the_servers_log(child: ChildProcess) -> None:
    assert child.predict("one", do="leftover", text="late").logs == ""

    heard = child.predict("two", do="release_leftover")

    assert names(heard) == ["OutputChunk", "Done"]
    child.await_server_log("late\n")


def test_what_a_leftover_task_prints_goes_to_the_servers_log(async_child: ChildProcess) -> None:
    async_child.predict("one", do="leaves_a_task", text="gate")

    heard = async_child.predict("two", do="opens", text="gate")

    assert heard.logs == ""
    async_child.await_server_log("late gate\n")


def test_predictions_at_once_keep_their_prints_apart(async_child: ChildProcess) -> None:
    for slot in range(8):
        async_child.start(f"p{slot}", slot=slot, do="prints_by_turns", text=f"slot {slot}", number=50)

    for slot in range(8):
        assert async_child.hear(slot).logs == "".join(f"slot {slot} {at}\n" for at in range(50))


def test_tasks_and_their_threads_belong_to_the_prediction(async_child: ChildProcess) -> None:
    for slot in range(4):
        async_child.start(f"p{slot}", slot=slot, do="prints_in_tasks", text=str(slot))

    for slot in range(4):
        heard = async_child.hear(slot)
        assert sorted(heard.logs.splitlines()) == [f"task {slot}", f"thread {slot}"]
        assert "Metric" in names(heard)


def test_the_thread_of_a_pool_belongs_to_whom_it_works_for(async_child: ChildProcess) -> None:
    """One thread, started by the first prediction, and both run until both have printed."""
    async_child.start("waits", slot=1, do="prints_in_the_shared_pool", text="one", number=1)
    async_child.await_log("began", slot=1)

    assert async_child.predict(do="prints_in_the_shared_pool", text="two").logs == "began\npool two\n"
    assert async_child.hear(1).logs == "pool one\n"


def test_descriptors_belong_to_the_only_prediction_there_is(async_child: ChildProcess) -> None:
    assert async_child.predict(do="descriptor", text="alone").logs == "alone\n"

    async_child.start("other", slot=1, do="forever")
    async_child.await_log("waiting", slot=1)
    assert async_child.predict(do="descriptor", text="one of two").logs == ""

    async_child.await_server_log("one of two\n")
    async_child.cancel("other", slot=1)
    assert isinstance(async_child.hear(1).end, Cancelled)


def test_what_is_no_utf8_is_replaced(child: ChildProcess) -> None:
    assert child.predict(do="descriptor", text=b"a\xffb\xc3\n".hex()).logs == "a\ufffdb\ufffd\n"
    assert child.predict(do="unterminated", text="lone").logs == "lone"


def test_a_line_without_end_is_cut(child: ChildProcess) -> None:
    logs = child.predict(do="long_line", text="x" * 1000, number=5000).logs

    line, rest = logs.split("\n", 1)
    assert line.startswith("x" * (4 << 20))
    assert line[4 << 20 :] == " [TRUNCATED: the line is longer than 4 MiB]"
    assert rest == "next\n"


def test_many_small_writes_cost_little(child: ChildProcess) -> None:
    assert child.predict(do="many_writes", text="x", number=200_000).logs == "x" * 200_000


def test_a_server_that_does_not_read_stops_nobody_for_ever(tmp_path: Path) -> None:
    path = write_predictor(
        tmp_path,
        """
import threading
printed = threading.Event()
def work():
    printed.wait(20)
    print("all is printed")
threading.Thread(target=work, daemon=True).start()
def run(number: int) -> str:
    for at in range(number):
        print("x" * 10_000)
    printed.set()
    return "done"
""",
    )
    with ChildProcess(f"{path}:run") as child:
        child.set_up()
        child.start(number=2000)
        child.await_server_log("all is printed")  # while nobody reads the slot

        heard = child.hear()
        dropped = child.control.receive()

    assert heard.chunks == ["done"]
    assert isinstance(dropped, DroppedLogs)
    n_lines = sum(isinstance(message, LogLine) for message in heard)
    assert n_lines + dropped.count == 2000
    assert dropped.count > 0


def test_prints_outside_predictions_go_to_the_servers_log(tmp_path: Path) -> None:
    path = write_predictor(
        tmp_path,
        """
import threading
go = threading.Event()
def work():
    go.wait(20)
    print("background")
threading.Thread(target=work, daemon=True).start()
def run() -> str:
    go.set()
    return "done"
""",
    )
    with ChildProcess(f"{path}:run") as child:
        child.set_up()

        assert child.predict().logs == ""

        assert child.control.receive() == Log("stdout", "background\n")


def test_the_log_of_the_worker_is_not_in_setups(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_predictor(
        tmp_path, "import logging\nlogging.getLogger('corosrv.x').warning('chatter')\ndef run() -> str: ..."
    )
    with ChildProcess(f"{path}:run") as child:
        child.set_up()

    assert child.setup_logs == ""
    assert "chatter" in capfd.readouterr().err
