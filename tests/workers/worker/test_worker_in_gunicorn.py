"""A worker of a server as people run it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.server import GUNICORN, Server
from tests.workers.worker.predicting import wait_for_death


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    app = (*GUNICORN, "-b", "127.0.0.1:0", "tests.support.predicting_app:application")
    server = Server(app, {}, tmp_path / "log")
    try:
        yield server
    finally:
        server.stop()


def test_predictions_run_crash_and_end_with_their_server(server: Server) -> None:
    _, first = server.get("/?do=echo")
    assert (first["last"]["type"], first["permits"]) == ("done", [4, 0, 0])

    _, crash = server.get("/?do=exit&code=3")
    assert crash["last"]["error"] == "the worker crashed with exit code 3"
    assert crash["permits"] == [0, 0, 4]
    wait_for_death(crash["pid"])


def test_a_worker_ends_with_a_server_that_is_killed(server: Server) -> None:
    _, told = server.get("/?do=nothing")

    os.kill(parent_of(told["pid"]), signal.SIGKILL)

    wait_for_death(told["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
