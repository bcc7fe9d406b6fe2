"""A server under load, seen from outside: its processor time, memory, threads and descriptors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.serve.server import free_port


@dataclass(frozen=True, slots=True)
class Usage:
    """A reading of /proc: seconds of processor time of the main thread and of all, bytes, counts."""

    main_cpu: float
    cpu: float
    rss: int
    threads: int
    descriptors: int


def usage(pid: int) -> Usage:
    status = _status(pid)
    return Usage(
        main_cpu=_cpu(pid, pid),
        cpu=sum(_cpu(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")),
        rss=int(status["VmRSS"].split()[0]) * 1024,
        threads=int(status["Threads"]),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
    )


def peak_memory(pid: int) -> int:
    """Returns the most bytes that a process has had in memory."""
    return int(_status(pid)["VmHWM"].split()[0]) * 1024


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _cpu(pid: int, thread: int) -> float:
    # In nanoseconds, where /proc/PID/stat counts in hundredths of a second.
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it listens, and the process that serves."""

    address: tuple[str, int]
    worker_pid: int

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def get(self, path: str, timeout: float = 10.0) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return bytes(answer.read())

    def metric(self, name: str) -> float:
        """The sum of a metric's samples; of one, where the name has labels."""
        samples = (line.rpartition(" ") for line in self.get("/metrics").decode().splitlines())
        values = [float(value) for sample, _, value in samples if name in (sample, sample.partition("{")[0])]
        if not values:
            raise KeyError(name)
        return sum(values)


@contextlib.contextmanager
def serving(
    settings: dict[str, str],
    timeout: float = 120.0,
    log: Path | None = None,
    before: Callable[[], None] | None = None,
    environ: dict[str, str] | None = None,
    folder: str | None = None,
) -> Iterator[Server]:
    """`corosrv serve` with these COROSRV_ settings, ready; ended by its process id.

    `log`: where it writes; `before` is called in its process first. `environ`: further variables; `folder`: a checkout
    whose corosrv it is, if not this one's.
    """
    port = free_port()
    environ = os.environ | {f"COROSRV_{name}": value for name, value in settings.items()} | (environ or {})
    with open(log or os.devnull, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "corosrv", "serve", "--port", str(port)],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=out,
            preexec_fn=before,
            cwd=folder,
        )
    try:
        _wait_until_ready(port, process, time.monotonic() + timeout)
        yield Server(("127.0.0.1", port), _worker_of(process.pid))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], deadline: float) -> None:
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the server did not become ready")


def _worker_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])
