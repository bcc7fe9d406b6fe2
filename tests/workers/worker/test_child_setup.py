"""How a child is set up, or says why not: the real one, over real channels."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corosrv.workers.wire.messages import Ready, SlotFailed
from tests.support.worker_child import TIMEOUT, ChildProcess, write_predictor

FAILURES = {
    "syntax error": ("def run(:", "run", "SyntaxError"),
    "raises on import": ("raise RuntimeError('no weights here')", "run", "RuntimeError: no weights here"),
    "import error": ("import surely_not_there", "run", "ModuleNotFoundError: No module named 'surely_not_there'"),
    "no such class": ("class Predictor: pass", "Other", "has no class or function 'Other'"),
    "not callable": ("Other = 3", "Other", "'Other' in"),
    "neither run nor predict": ("class Other: pass", "Other", "neither run() nor predict()"),
    "both": (
        "class Other:\n  def run(self) -> str: ...\n  def predict(self) -> str: ...",
        "Other",
        "both run() and predict()",
    ),
    "constructor raises": (
        "class Other:\n  def __init__(self): raise KeyError('gone')\n  def run(self) -> str: ...",
        "Other",
        "KeyError: 'gone'",
    ),
    "setup exits": (
        "import sys\nclass Other:\n  def setup(self): sys.exit(3)\n  def run(self) -> str: ...",
        "Other",
        "SystemExit: 3",
    ),
    "no annotation": ("def Other(text): ...", "Other", "text: an input needs an annotation"),
}


@pytest.mark.parametrize(("source", "name", "error"), FAILURES.values(), ids=FAILURES)
def test_set_up_fails_with_a_clear_word(tmp_path: Path, source: str, name: str, error: str) -> None:
    path = write_predictor(tmp_path, f"print('printed before')\n{source}\n")

    with ChildProcess(f"{path}:{name}") as child:
        failed = child.outcome()

        assert isinstance(failed, SlotFailed)
        assert failed.slot == -1
        assert error in failed.error
        assert error in child.setup_logs.split("\n", 1)[1] or "SyntaxError" in child.setup_logs
        assert child.setup_logs.startswith("printed before\n") or error == "SyntaxError"
        assert child.process.wait(TIMEOUT) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with ChildProcess(f"{tmp_path}/nowhere.py:Predictor") as child:
        failed = child.outcome()

        assert isinstance(failed, SlotFailed)
        assert f"there is no file {tmp_path}/nowhere.py" in failed.error


@pytest.mark.parametrize("reference", ["surely_not_there:run", "surely.not.there:run", "surely_not_there"])
def test_a_missing_module_is_named(reference: str) -> None:
    with ChildProcess(reference) as child:
        failed = child.outcome()

        assert isinstance(failed, SlotFailed)
        assert f"there is no module {reference.split(':')[0]!r}" in failed.error


def test_the_traceback_begins_in_the_authors_file(tmp_path: Path) -> None:
    source = (
        "def load():\n    raise OSError('disk')\nclass P:\n    def setup(self): load()\n    def run(self) -> str: ..."
    )
    path = write_predictor(tmp_path, source)

    with ChildProcess(f"{path}:P") as child:
        child.outcome()

    assert child.setup_logs.startswith(f'Traceback (most recent call last):\n  File "{path}", line 4, in setup')
    assert child.setup_logs.endswith("OSError: disk\n")


@pytest.mark.parametrize("fails", [False, True])
def test_all_that_set_up_prints_comes_before_its_outcome(tmp_path: Path, fails: bool) -> None:
    path = write_predictor(
        tmp_path,
        f"""
import os, subprocess, sys
print("import")
class P:
    def __init__(self):
        sys.stderr.write("construction\\n")
    def setup(self):
        subprocess.run(["echo", "child process"])
        os.write(2, b"descriptor\\n")
        print("no end", end="")
        assert not {fails}, "failed"
    def run(self) -> str: ...
""",
    )

    with ChildProcess(f"{path}:P") as child:
        child.outcome()

    # Not as lines: what a child process printed may arrive behind the one without an end.
    assert all(text in child.setup_logs for text in ("import\n", "construction\n", "child process\n", "descriptor\n"))
    assert "no end" in child.setup_logs
    assert child.setup_logs.endswith("AssertionError: failed\n") == fails


@pytest.mark.parametrize("kind", ["file and class", "file and function", "module", "file alone"])
def test_a_predictor_is_found(tmp_path: Path, kind: str) -> None:
    source = "class Predictor:\n  def run(self) -> str: return 'class'\ndef run() -> str: return 'function'\n"
    path = write_predictor(tmp_path, source, "found.py")
    reference, output = {
        "file and class": (f"{path}:Predictor", "class"),
        "file and function": (f"{path}:run", "function"),
        "module": ("found:run", "function"),
        "file alone": (str(path), "class"),
    }[kind]

    with ChildProcess(reference, cwd=tmp_path) as child:
        child.set_up()

        assert child.predict().chunks == [output]


def test_a_relative_file_may_have_neighbours_and_the_name_of_a_library_module(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    write_predictor(tmp_path / "inner", "WORD = 'neighbour'\n", "helper.py")
    write_predictor(
        tmp_path / "inner", "import json, helper\ndef run() -> str: return json.dumps(helper.WORD)", "json.py"
    )

    with ChildProcess("inner/json.py:run", cwd=tmp_path) as child:
        child.set_up()

        assert child.predict().chunks == ['"neighbour"']


@pytest.mark.parametrize(("weights", "expected"), [("/some/where", "/some/where"), ("", "None")])
def test_setup_gets_the_weights_that_it_takes(tmp_path: Path, weights: str, expected: str) -> None:
    source = "class P:\n  def setup(self, weights): print(weights)\n  def run(self) -> str: ..."
    path = write_predictor(tmp_path, source)

    with ChildProcess(f"{path}:P", env={"COG_WEIGHTS": weights}) as child:
        child.set_up()

    assert child.setup_logs == f"{expected}\n"


SLOTS = {
    "sync alone": ("def run() -> str: ...", None, [0]),
    "async undecorated": ("async def run() -> str: ...", None, [0]),
    "decorated": ("@concurrent(max=3)\nasync def run() -> str: ...", None, [0, 1, 2]),
    "operator's word goes first": ("@concurrent(max=3)\nasync def run() -> str: ...", 2, [0, 1]),
    "sync with several": ("def run() -> str: ...", 2, "2 slots need an async run()"),
}


@pytest.mark.parametrize(("source", "slots", "expected"), SLOTS.values(), ids=SLOTS)
def test_slots(tmp_path: Path, source: str, slots: int | None, expected: list[int] | str) -> None:
    path = write_predictor(tmp_path, f"from corosrv.worker import concurrent\n{source}\n")

    with ChildProcess(f"{path}:run", slots=slots) as child:
        outcome = child.outcome()

        if isinstance(outcome, Ready):
            assert outcome.slots == expected
        else:
            assert str(expected) in outcome.error


def test_ready_carries_the_document(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, "def run(word: str) -> str: ...")

    with ChildProcess(f"{path}:run") as child:
        schema = child.set_up().schema

    assert schema["components"]["schemas"]["Input"]["required"] == ["word"]


def test_user_code_finds_an_unpatched_interpreter_without_the_server(tmp_path: Path) -> None:
    source = (
        "import sys\nprint(sorted({'gevent', 'flask', 'corosrv.contracts.settings', 'asyncio'} & set(sys.modules)))\n"
    )
    path = write_predictor(tmp_path, source + "def run() -> str: ...")

    with ChildProcess(f"{path}:run") as child:
        child.set_up()

    assert child.setup_logs == "[]\n"


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_modules_of_the_authors_may_be_called_as_pythons_are(tmp_path: Path, keyword: str) -> None:
    for name in ("inspect", "logging", "numbers", "queue", "select", "signal", "socket", "string", "token"):
        write_predictor(tmp_path, "1 / 0", f"{name}.py")
    write_predictor(tmp_path, "WORD = 'mine'", "helper.py")
    write_predictor(tmp_path, f"import helper\n{keyword} run() -> str: return helper.WORD\n")

    with ChildProcess("predict.py:run", cwd=tmp_path) as child:
        child.set_up()

        assert child.predict().chunks == ["mine"]


def test_a_server_of_another_protocol_is_refused(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, "def run() -> str: ...")

    with ChildProcess(f"{path}:run", protocol=99) as child:
        failed = child.outcome()

        assert isinstance(failed, SlotFailed)
        assert "protocol 99" in failed.error


def test_started_by_hand_it_says_who_ought_to() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "corosrv.workers.worker"], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )

    assert ended.returncode != 0
    assert "corosrv serve --predictor" in ended.stderr


@pytest.mark.parametrize("moment", ["import", "setup", "run", "idle"])
def test_the_child_dies_with_its_server(tmp_path: Path, moment: str) -> None:
    """And takes the processes along that it has started."""
    block = "subprocess.Popen(['sleep', '1000']); print('blocked', flush=True); time.sleep(1000)"
    source = f"""
import subprocess, time
def block(when):
    if when == {moment!r}:
        {block}
block("import")
class P:
    def setup(self): block("setup")
    def run(self) -> str: block("run")
"""
    path = write_predictor(tmp_path, source)
    with ChildProcess(f"{path}:P") as child:
        if moment in ("import", "setup"):
            child.await_server_log("blocked")
        else:
            child.set_up()
        if moment == "run":
            child.start()
            child.await_log("blocked")

        child.control.close()

        assert child.process.wait(TIMEOUT) == -signal.SIGKILL
        _await_empty_group(child.process.pid)


def test_user_code_that_never_lets_go_of_the_interpreter_dies_with_the_server(tmp_path: Path) -> None:
    source = "import subprocess\ndef run() -> str:\n  subprocess.Popen(['sleep', '1000'])\n"
    source += "  print('blocked', flush=True)\n  any(iter(int, 1))\n"
    with ChildProcess(f"{write_predictor(tmp_path, source)}:run") as child:
        child.set_up()
        child.start()
        child.await_log("blocked")

        child.drop_lifeline()

        assert child.process.wait(TIMEOUT) == -signal.SIGKILL
        _await_empty_group(child.process.pid)


def _await_empty_group(group: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while _living_in_group(group):
        assert time.monotonic() < deadline, "a process is left"


def _living_in_group(group: int) -> list[str]:
    """Their ids; those that nobody has reaped yet do not live."""
    living = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                living.append(status.parent.name)
    return living


def test_a_forked_process_does_not_hide_the_childs_end(tmp_path: Path) -> None:
    source = "import os, time\ndef run() -> str:\n  if os.fork() == 0: time.sleep(1000)\n  os._exit(3)\n"
    with ChildProcess(f"{write_predictor(tmp_path, source)}:run") as child:
        child.set_up()
        child.start()

        assert child.process.wait(TIMEOUT) == 3
        assert all(select.select([channel], [], [], 5)[0] for channel in child.sockets)


def test_garbage_on_control_ends_the_child(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, "def run() -> str: ...")
    with ChildProcess(f"{path}:run") as child:
        child.set_up()

        child.sockets[0].sendall(b"\xff" * 100)

        assert "control channel is broken" in child.control.receive().reason  # type: ignore[union-attr]
        assert child.process.wait(TIMEOUT) == -signal.SIGKILL


def test_garbage_on_a_slot_poisons_that_slot(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, "async def run(word: str = 'well') -> str: return word")
    with ChildProcess(f"{path}:run", slots=2) as child:
        child.set_up()

        child.sockets[1].sendall(b"\0\0\0\2{]")

        failed = child.control.receive()
        assert isinstance(failed, SlotFailed)
        assert failed.slot == 0
        assert child.predict(slot=1).chunks == ["well"]


def test_a_shutdown_waits_for_what_runs(tmp_path: Path) -> None:
    source = "import asyncio, atexit\natexit.register(print, 'exit handler')\n"
    source += "async def run() -> str:\n  print('on')\n  await asyncio.sleep(0.2)\n  return 'done'\n"
    path = write_predictor(tmp_path, source)
    with ChildProcess(f"{path}:run") as child:
        child.set_up()
        child.start()
        child.await_log("on")

        status = child.shut_down()

        assert status == 0
        assert child.hear().chunks == ["done"]
        assert child.server_log == "exit handler\n"


@pytest.mark.parametrize("source", ["def run() -> str: ...", "async def run() -> str: ..."])
def test_an_idle_child_shuts_down_though_a_thread_hangs(tmp_path: Path, source: str) -> None:
    hang = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    path = write_predictor(tmp_path, hang + source)
    with ChildProcess(f"{path}:run") as child:
        child.set_up()

        assert child.shut_down() == 0


def test_a_shutdown_in_set_up_ends_it_at_once(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, "import time\nprint('on')\ntime.sleep(1000)\n")
    with ChildProcess(f"{path}:run") as child:
        child.await_server_log("on")

        assert child.shut_down() == 0


def test_the_child_loads_nothing_that_it_can_do_without() -> None:
    """A worker has to start fast: these packages would take longer to import than all that it needs."""
    heavy = ("asyncio", "email", "flask", "gevent", "gunicorn", "jinja2", "numpy", "prometheus_client", "urllib3")
    code = f"import sys, corosrv.workers.worker.child.child; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True)

    assert ended.stdout.strip() == "[]"
