"""Starts servers on free loopback ports, waits until they are ready, and ends them by their process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT = 180.0  # seconds; a model is loaded
STOP_TIMEOUT = 30.0
POLL = 0.1


@dataclass(frozen=True, slots=True)
class Setup:
    """What both servers are given."""

    model: str
    threads: int
    slots: int
    context: int  # tokens of a slot


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers, and the command that started it."""

    name: str
    url: str
    command: str


@contextlib.contextmanager
def corosrv(setup: Setup) -> Iterator[Running]:
    options = {"model": setup.model, "threads": setup.threads, "slots": setup.slots, "ctx": setup.context}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with _running("corosrv", [sys.executable, "-m", "corosrv", "serve", "--host", "127.0.0.1", *flags]) as running:
        yield running


@contextlib.contextmanager
def llama_server(programs: Path, setup: Setup) -> Iterator[Running]:
    flags = ["-m", setup.model, "-t", str(setup.threads), "-np", str(setup.slots)]
    command = [str(programs / "llama-server"), "--host", "127.0.0.1", *flags, "-c", str(setup.slots * setup.context)]
    with _running("llama-server", command) as running:
        yield running


@contextlib.contextmanager
def _running(name: str, command: Sequence[str]) -> Iterator[Running]:
    port = _free_port()
    command = [*command, "--port", str(port)]
    # Nothing of the caller's own settings: the figures are of what the command line says.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COROSRV_", "LLAMA_ARG_"))}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(name, port, process)
        yield Running(name, f"http://127.0.0.1:{port}", shown(command))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def shown(command: Sequence[str]) -> str:
    """A command as somebody else would type it: programs and models without their folders, Python's as a script."""
    words = [os.path.basename(word) if word.startswith("/") else word for word in command]
    return " ".join(words[2:] if words[1:3] == ["-m", "corosrv"] else words)


def _wait_until_ready(name: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(POLL)
    raise SystemExit(f"{name} did not become ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
