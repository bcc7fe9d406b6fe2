"""The servers that `tests.load.grpc_calls` measures, each in processes of its own: ours, and bare ones beside them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.load.handlers import APP
from tests.load.process import free_port, serving
from tests.support.waiting import eventually

FUNCTIONS = ("front", "threads", "aio")  # what a process of this module may be


@contextlib.contextmanager
def started(name: str) -> Iterator[tuple[int, int]]:
    """Starts a server of this module; gives its port, and the id of the process that speaks gRPC."""
    command = [sys.executable, "-m", "tests.load.grpc_servers", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, pid = map(int, server.stdout.readline().split())
        try:
            yield port, pid or server.pid
        finally:
            server.terminate()


@dataclass(frozen=True)
class Handlers:
    """A running `corosrv serve` with an application: its ports, and the ids of its processes."""

    grpc_port: int
    http_port: int
    front_pid: int
    grpc_pid: int


@contextlib.contextmanager
def handlers() -> Iterator[Handlers]:
    """Starts `corosrv serve` with an application."""
    port = free_port()
    with serving({"WORKER_APP": APP, "GRPC_PORT": str(port), "MODEL": ""}) as server:
        yield Handlers(port, server.address[1], server.worker_pid, _grpc_process_of(server.worker_pid))


def _grpc_process_of(front_pid: int) -> int:
    tasks = Path(f"/proc/{front_pid}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return int(
        next(pid for pid in pids if b"corosrv.dialects.kserve.grpc" in Path(f"/proc/{pid}/cmdline").read_bytes())
    )


@contextlib.contextmanager
def bare_flask() -> Iterator[int]:
    """Starts a bare Flask route under `gunicorn -k gevent`; gives its port."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-k", "gevent", "--keep-alive", "60", "-b", f"127.0.0.1:{port}"]
    with subprocess.Popen([*command, "tests.load.bare_flask:application"], stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: _answers(f"http://127.0.0.1:{port}/echo"), 60, "an answer of Flask")
            yield port
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, data=b"x", timeout=5):
        return True
    return False


def serve_front() -> None:
    import gevent
    from gevent.event import Event

    from tests.dialects.kserve.grpc.conftest import make_worker
    from tests.dialects.kserve.grpc.conftest import serving as serving_functions

    is_ended = Event()
    gevent.signal_handler(signal.SIGTERM, is_ended.set)
    with serving_functions(make_worker()) as front:
        print(front.port, front.pid, flush=True)
        is_ended.wait()


def serve_threads() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_echo_handler(lambda request, context: request),))
    print(server.add_insecure_port("127.0.0.1:0"), 0, flush=True)
    server.start()
    server.wait_for_termination()


async def serve_aio() -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        return request

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_echo_handler(echo),))
    print(server.add_insecure_port("127.0.0.1:0"), 0, flush=True)
    await server.start()
    await server.wait_for_termination()


def _echo_handler(echo: Any) -> Any:
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(echo)}
    return grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)


if __name__ == "__main__":
    {"front": serve_front, "threads": serve_threads, "aio": lambda: asyncio.run(serve_aio())}[sys.argv[1]]()
