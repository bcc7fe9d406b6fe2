"""Runs `corosrv worker` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.serve.server import REPOSITORY, Process
from tests.support.waiting import eventually

APP = f"{REPOSITORY}/tests/serve/joining_app.py:app"
PATIENCE = 60.0  # seconds that anything may take


class JoinedWorker:
    """Owns the process that keeps a worker joined, and a file with what it says."""

    def __init__(self, log: Path, *words: str, user: int | None = None) -> None:
        self.log_file = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "corosrv", "worker", *words],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, user=user,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def worker(self) -> int:
        """The pid of the worker process, once there is one."""
        (pid,) = eventually(Process(self._process.pid).children, PATIENCE, f"a worker process\n{self.log}")
        return pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Kills it; its worker process ends with it. Twice is harmless."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self.wait()


@contextlib.contextmanager
def joined_worker(folder: Path, *words: str, user: int | None = None) -> Iterator[JoinedWorker]:
    worker = JoinedWorker(folder / "worker.log", *words, user=user)
    try:
        yield worker
    finally:
        worker.close()
