"""The commands, in processes of their own, against real workers of a real application."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.web.management.serving import short_folder

APP = """
from corosrv.workers.worker.app.app import App

app = App("test")


@app.model("echo", concurrency=2)
def echo(request):
    return {}
"""
PATIENCE = 60.0  # seconds


def corosrv(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corosrv", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def until(run_dir: str, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Looks with `corosrv ps` until what it shows is right."""
    deadline = time.monotonic() + PATIENCE
    while True:
        shown = corosrv("ps", "--json", "--run-dir", run_dir)
        assert shown.returncode == 0, shown.stderr
        if is_right(value := json.loads(shown.stdout)):
            return value
        assert time.monotonic() < deadline, value


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "some_app.py").write_text(APP)
    with short_folder() as folder:
        command = [sys.executable, "-m", "tests.web.management.server_process", str(tmp_path), folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
            yield folder
            server.terminate()
            assert server.wait(timeout=PATIENCE) == 0
        assert list(Path(folder).iterdir()) == []


def ready(value: dict[str, Any]) -> dict[str, int]:
    return {worker["id"]: worker["pid"] for worker in value["workers"] if worker["state"] == "ready"}


def test_an_operator_sees_replaces_and_scales_workers(run_dir: str):
    before = ready(until(run_dir, lambda value: len(ready(value)) == 2))

    assert corosrv("drain", "default/0", "--run-dir", run_dir).returncode == 0
    after = ready(until(run_dir, lambda value: len(ready(value)) == 2 and "default/0" not in ready(value)))
    assert after["default/1"] == before["default/1"]
    eventually(lambda: not Path(f"/proc/{before['default/0']}").exists())  # it is ending when its successor is ready

    assert "from 3 to 3" in corosrv("scale", "default", "3", "3", "--run-dir", run_dir).stdout
    until(run_dir, lambda value: len(ready(value)) == 3)

    table = corosrv("ps", "--run-dir", run_dir).stdout
    assert table.count(" ready ") == 4  # three workers and a queue
    assert "model:echo:" in table
