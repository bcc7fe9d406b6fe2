"""Processor time of handlers beside KServe's own server: `python -m tests.load.beside_kserve --kserve PYTHON`.

PYTHON is one that has `kserve` (`pip install kserve`, in an environment of its own). Both servers have a model that
gives back its inputs, and log what they do by default; --quiet keeps KServe's from it. They get the same messages, in
turn: tensors of 1 kB and of 1 MiB, as binary data over REST and as raw contents over gRPC. What counts is the processor
time of all processes of a server for each call; the ratios are medians over the rounds. Without --kserve, corosrv alone
is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from corosrv.dialects.kserve.infer_request import LENGTH_HEADER
from tests.load.grpc_calls import call_side_by_side, make_request
from tests.load.grpc_servers import handlers
from tests.load.process import free_port
from tests.support.waiting import eventually

SIZES = {"1 kB": 1000, "1 MiB": 1 << 20}
START = 120.0  # seconds
_ECHO = str(Path(__file__).with_name("kserve_echo.py"))


@dataclass(frozen=True)
class Peer:
    """A running server: its ports, and the process whose descendants are all of it."""

    http_port: int
    grpc_port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time of all its processes, those of threads that have ended as well."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in _tree(self.pid))


def _tree(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _words(task / "children")]
    return [pid, *(descendant for child in children for descendant in _tree(child))]


def _words(file: Path) -> list[str]:
    return file.read_text().split()


@contextlib.contextmanager
def corosrv() -> Iterator[Peer]:
    with handlers() as served:
        yield Peer(served.http_port, served.grpc_port, served.front_pid)


@contextlib.contextmanager
def kserve(python: str, is_quiet: bool) -> Iterator[Peer]:
    http_port, grpc_port = free_port(), free_port()
    command = [python, _ECHO, str(http_port), str(grpc_port), *["--quiet"] * is_quiet]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: _is_ready(http_port), START, "an answer of KServe's server")
            yield Peer(http_port, grpc_port, server.pid)
        finally:
            server.terminate()


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
        return True
    return False


Way = Callable[[Peer, int], object]  # makes so many calls


def over_rest(n_bytes: int, n_callers: int) -> Way:
    tensor = {"name": "x", "datatype": "UINT8", "shape": [n_bytes], "parameters": {"binary_data_size": n_bytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}

    def call(peer: Peer, n_calls: int) -> None:
        with contextlib.closing(HTTPConnection("127.0.0.1", peer.http_port, timeout=60)) as connection:
            for _ in range(n_calls):
                connection.request("POST", "/v2/models/echo/infer", head + bytes(n_bytes), headers)
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 200, body[:500]
                assert len(body) > n_bytes

    def call_side_by_side(peer: Peer, n_calls: int) -> None:
        with ThreadPoolExecutor(n_callers) as threads:
            list(threads.map(call, [peer] * n_callers, [n_calls // n_callers] * n_callers))

    return call_side_by_side


def over_grpc(sent: bytes, n_callers: int) -> Way:
    def call(peer: Peer, n_calls: int) -> None:
        asyncio.run(call_side_by_side(peer.grpc_port, sent, n_callers, n_calls))

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kserve", metavar="PYTHON", help="a Python that has KServe's server")
    parser.add_argument("--quiet", action="store_true", help="KServe's server writes no log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--calls",
        type=int,
        default=640,
        help="of 1 kB in each round, and a sixteenth as many of 1 MiB",
    )
    parser.add_argument("--callers", type=int, default=4)
    measure(parser.parse_args())


def measure(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as servers:
        peers = {"corosrv": servers.enter_context(corosrv())}
        if options.kserve:
            peers["KServe"] = servers.enter_context(kserve(options.kserve, options.quiet))
        for size, n_bytes in SIZES.items():
            n_calls = options.calls if n_bytes < 1 << 20 else options.calls // 16
            ways = {
                "REST": over_rest(n_bytes, options.callers),
                "gRPC": over_grpc(make_request(n_bytes), options.callers),
            }
            for protocol, way in ways.items():
                compare(f"{size} over {protocol}", way, peers, n_calls, options.rounds)


def compare(what: str, way: Way, peers: dict[str, Peer], n_calls: int, n_rounds: int) -> None:
    """Prints what a call costs each server, and the ratio."""
    costs: dict[str, list[float]] = {name: [] for name in peers}
    for peer in peers.values():
        way(peer, n_calls // 2)  # warm
    for _ in range(n_rounds):
        for name, peer in peers.items():
            before = peer.cpu()
            way(peer, n_calls)
            costs[name].append((peer.cpu() - before) / n_calls * 1000)
    words = [f"{name} {statistics.median(found):.2f} ms" for name, found in costs.items()]
    if len(peers) == 2:
        ours, theirs = costs.values()
        ratios = sorted(own / other for own, other in zip(ours, theirs, strict=True))
        words.append(f"ratio {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}")
    print(f"{what}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
