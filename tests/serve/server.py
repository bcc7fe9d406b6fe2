"""A real corosrv in a process of its own: started, watched through /proc, and stopped by its own pid."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import openai

from tests.serve.wire import Connection
from tests.support import hub_watch
from tests.support.waiting import WAIT_SECONDS, eventually

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parent.parent.parent
START_SECONDS = 90.0  # the probe of libllama, a slow disk and a busy machine included
END_SECONDS = 20.0  # for the end of a server, which would wait for its streams for 25

LOWEST_PORT = 12_000  # of those that free_port() looks among: well-known ones are below it

GUNICORN = ("gunicorn", "-k", "gevent", "--no-control-socket")
APP = (*GUNICORN, "-b", "127.0.0.1:0", "corosrv.app")
SERVE = ("corosrv", "serve", "--port", "0")
DEPLOYED = ("gunicorn", "-c", str(REPOSITORY / "deploy" / "gunicorn.conf.py"), "-b", "127.0.0.1:0", "corosrv.app")

_direct = build_opener(ProxyHandler({}))


def free_port() -> int:
    """Returns a port that nobody has, and that the system gives to nobody who asks for any.

    One of those that it gives might be another program's before the server that is told of it begins to listen.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = LOWEST_PORT + secrets.randbelow(max(first - LOWEST_PORT, 1000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One server process and its workers. Whoever made it stops it."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], log: Path) -> None:
        """Starts it; the system chooses the port, which the server's log tells."""
        self.log_file = log
        program = [str(BIN / command[0]), *command[1:]]
        self._held = log.with_suffix(".held")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                program,
                env=inherited | {"PYTHONUNBUFFERED": "1"} | hub_watch.of_server(self._held) | environ,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.port = int(eventually(self._listens_at, START_SECONDS, "a line in the log that tells the port"))
        except BaseException:
            self.stop()
            raise

    def _listens_at(self) -> str | None:
        has_ended = not self.is_running
        found = re.search(r"(?:Listening at: |Running on )https?://127\.0\.0\.1:(\d+)", self.log)
        assert found or not has_ended, f"it ended at once:\n{self.log}"  # one that listened first may have ended since
        return found.group(1) if found else None

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace")

    # What it answers

    def get(self, path: str, timeout: float = WAIT_SECONDS) -> tuple[int, Any]:
        """Status, and body as JSON where it is JSON."""
        try:
            with _direct.open(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                status, body = answer.status, answer.read()
        except HTTPError as error:
            with error:
                status, body = error.code, error.read()
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode()

    def health(self, prefix: str = "") -> str:
        """starting, ok, failed, draining; or nothing when nobody answers."""
        try:
            return str(self.get(f"{prefix}/health")[1]["status"])
        except OSError:
            return ""

    def wait_until(self, status: str, prefix: str = "") -> None:
        eventually(lambda: self.health(prefix) == status, START_SECONDS, f"health {status}\n{self.log}")

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Every sample by its name with labels; those of several models and processes summed, both left out."""
        samples: dict[str, float] = {}
        for line in self.get(f"{prefix}/metrics")[1].splitlines():
            if line[:1] != "#":
                name, _, value = line.rpartition(" ")
                name = re.sub(r'(?:model|front)="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
                samples[name] = samples.get(name, 0.0) + float(value)
        return samples

    def metric(self, name: str) -> float:
        return self.metrics()[f"corosrv_{name}"]

    def cancelled(self) -> float:
        return self.metric('jobs_total{outcome="cancelled"}')

    def wait_metric(self, name: str, value: float, within: float = WAIT_SECONDS) -> None:
        eventually(lambda: self.metric(name) == value, within, f"{name} is {value}")

    def wait_idle(self, within: float = WAIT_SECONDS, prefix: str = "") -> None:
        """Until nothing runs, waits or is held for anybody."""
        gauges = ("running", "waiting", "paused", "readers", "open_streams")

        def is_idle() -> bool:
            metrics = self.metrics(prefix)
            return not any(metrics[f"corosrv_{name}"] for name in gauges)

        eventually(is_idle, within, "no running, waiting, reader or stream")

    # How it is asked

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, key: str = "none", prefix: str = "", **options: Any) -> openai.OpenAI:
        """The official client. It repeats nothing: a test sees each answer."""
        url = f"http://127.0.0.1:{self.port}{prefix}/v1"
        return openai.OpenAI(**{"base_url": url, "api_key": key, "max_retries": 0, "timeout": 60, **options})

    def connect(self, **options: Any) -> Connection:
        return Connection(self.port, **options)

    # What it is

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def workers(self) -> list[int]:
        """The pids of gunicorn's workers."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    @property
    def worker(self) -> Process:
        (pid,) = self.workers()
        return Process(pid)

    @property
    def engine(self) -> Process:
        """The process of its engine, where it has one of its own: the last one that its log tells of."""
        return Process(int(re.findall(r"its engine is process (\d+)", self.log)[-1]))

    # How it ends

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = END_SECONDS) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait(within)

    def stop(self) -> None:
        """Kills it with its workers: nobody's stream is worth waiting for in a test that is over. Twice is harmless."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)  # a session of its own: this process and its workers
            self.wait()
        hub_watch.server_ended(self._held)


class Process:
    """The system's figures of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._proc = Path(f"/proc/{pid}")

    @property
    def is_alive(self) -> bool:
        """One that has ended and was not reaped is dead."""
        try:
            return (self._proc / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def children(self) -> list[int]:
        """The pids of those that any of its threads started, and that still are."""
        tasks = (self._proc / "task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]

    def children_of(self, module: str) -> list[int]:
        """Returns the pids of its children that run a module."""
        pids = []
        for pid in self.children():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(pid)
        return pids

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def files(self) -> set[str]:
        """The names of the files that are mapped into its memory, libraries among them."""
        lines = (self._proc / "maps").read_text().splitlines()
        return {Path(line.split(maxsplit=5)[5]).name for line in lines if len(line.split(maxsplit=5)) == 6}

    def n_descriptors(self) -> int:
        return len(self.descriptors())

    def descriptors(self) -> list[str]:
        """What each open descriptor is, as the system calls it."""
        found = []
        for link in (self._proc / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(link))
        return found

    def n_threads(self) -> int:
        return len(list((self._proc / "task").iterdir()))

    def resident_bytes(self) -> int:
        """The memory that it holds now."""
        return self._status("VmRSS")

    def peak_bytes(self) -> int:
        """The most memory that it ever held."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", (self._proc / "status").read_text(), re.MULTILINE)
        assert found
        return int(found.group(1)) * 1024


class Servers:
    """Starts servers and stops all of them."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache
        self._started: list[Server] = []

    def start(self, *command: str, wait_for: str | None = "ok", **settings: Any) -> Server:
        """A server with these settings (`slots=2` is COROSRV_SLOTS), once its health says `wait_for`.

        Other variables are given in capitals. Without a command it is gunicorn with corosrv.app.
        """
        environ = {"XDG_CACHE_HOME": str(self._cache), "COROSRV_MODEL": "synthetic:?tokens_per_s=50"}
        for name, value in settings.items():
            environ[name if name.isupper() else f"COROSRV_{name.upper()}"] = str(value)
        log = self._folder / f"server-{len(self._started)}.log"
        server = Server(command or APP, environ, log)
        self._started.append(server)
        if wait_for is not None:
            server.wait_until(wait_for)
        return server

    def stop(self) -> None:
        for server in self._started:
            server.stop()


@contextmanager
def servers(folder: Path, cache: Path) -> Iterator[Servers]:
    started = Servers(folder, cache)
    try:
        yield started
    finally:
        started.stop()
