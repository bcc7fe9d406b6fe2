"""Servers that stand behind a front under load: llama-server where it was built, otherwise corosrv; and that front."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from corosrv.contracts.settings import model_list
from corosrv.web.management.client import ManagementClient
from tests.load.process import Server, free_port, serving

MODEL = "m"
START_SECONDS = 120.0


class UpstreamServer:
    """One server on a port of its own, which it has again after it was killed."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: with {port} where the port belongs."""
        self.port = free_port()
        self._command = [word.format(port=self.port) for word in command]
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
        return subprocess.Popen(
            self._command, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait(10)

    def restart(self) -> None:
        """Starts it again, after it was killed. Does not wait until it answers."""
        self._process = self._start()

    @property
    def is_well(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            return False

    def wait(self) -> None:
        """Waits until it is well. Raises RuntimeError after START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_well:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"{self._command[0]} did not become ready")
            time.sleep(0.05)

    def close(self) -> None:
        self.send(signal.SIGCONT)
        self.kill()


def llama_server(program: str, slots: int, context: int = 1024) -> list[str]:
    """Returns the command of a llama-server with the packaged model. `context`: tokens of each slot."""
    model = model_list.packaged_model()
    return [
        program, "-m", model, "--alias", MODEL, "--host", "127.0.0.1", "--port", "{port}", "-t", "1", "-tb", "1",
        "-np", str(slots), "-c", str(slots * context), "--no-kv-unified",
    ]  # fmt: skip


def corosrv_server(slots: int, context: int = 1024, model: str = "synthetic:?tokens_per_s=100") -> list[str]:
    """Returns the command of a corosrv with this model."""
    return [
        sys.executable, "-m", "corosrv", "serve", "--port", "{port}", "--model", f"{MODEL}={model}",
        "--slots", str(slots), "--ctx", str(context), "--threads", "1",
    ]  # fmt: skip


@contextlib.contextmanager
def upstream_servers(*commands: Sequence[str]) -> Iterator[list[UpstreamServer]]:
    """Starts servers, and yields them when all are well."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(contextlib.closing(UpstreamServer(command))) for command in commands]
        for server in servers:
            server.wait()
        yield servers


class LoadedFront:
    """A front of upstreams, and its management API."""

    def __init__(self, server: Server, run_dir: Path, log: Path) -> None:
        self.server = server
        self._run_dir = run_dir
        self._log = log

    def ended_calls(self) -> Iterator[dict[str, Any]]:
        """Yields what its log tells of each call that has ended, where LOG_LEVEL is debug and LOG_FORMAT json."""
        for line in self._log.read_text("utf-8", "replace").splitlines():
            if '"event": "call_ended"' in line:
                yield json.loads(line)

    def manage(self, method: str, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        (socket,) = filter(Path.is_socket, self._run_dir.iterdir())
        return ManagementClient(str(socket)).call(method, target, body)

    def wait_ready(self, n_upstreams: int) -> None:
        """Waits until so many upstreams are ready. Raises RuntimeError after START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while sum(worker["state"] == "ready" for worker in self.manage("GET", "/workers")["workers"]) < n_upstreams:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{n_upstreams} upstreams did not become ready")
            time.sleep(0.02)


@contextlib.contextmanager
def load_front(
    servers: Sequence[UpstreamServer], concurrency: int, checkout: str | None = None, **settings: str
) -> Iterator[LoadedFront]:
    """Starts a front of these servers, each of which gets `concurrency` calls at once.

    `checkout`: the folder whose corosrv it is, if not this one's.
    """
    urls = " ".join(f"{server.url}?concurrency={concurrency}" for server in servers)
    with tempfile.TemporaryDirectory(prefix="corosrv-") as folder:
        run_dir, log = Path(folder) / "run", Path(folder) / "log"
        run_dir.mkdir(0o700)
        options = {"MODEL": "", "UPSTREAM": urls, "ELASTIC": "1", "RUN_DIR": str(run_dir), **settings}
        with serving(options, log=log, folder=checkout) as server:
            front = LoadedFront(server, run_dir, log)
            front.wait_ready(len(servers))
            yield front


def chat(content: str, n_tokens: int, **fields: Any) -> bytes:
    """Makes the body of a chat whose answer has exactly so many tokens."""
    message = {"role": "user", "content": content}
    body = {"model": MODEL, "messages": [message], "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    return json.dumps(body | fields).encode()


def machine_load() -> str:
    """Says how busy the machine is, beside whatever is measured."""
    return f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
