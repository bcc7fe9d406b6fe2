"""Calls and streams over gRPC: `python -m tests.load.grpc_calls`, beside bare servers in the same run.

All of these get the same message with 1 kB, in turn, for several rounds: `handler`, a trivial handler of `corosrv
serve` over gRPC, and the same one over REST (`rest`); `front`, a function in the server's own process, so that what is
measured is the way there and back without a worker; bare echo servers of grpcio, which return the bytes that they get,
with threads and with asyncio; and a bare Flask route under `gunicorn -k gevent`, which does too. `rest` and `flask` are
called over plain sockets, which cost less than grpcio's client.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tests.load.callers import run
from tests.load.clients import request as http_request
from tests.load.grpc_servers import bare_flask, handlers, started
from tests.load.handlers import infer
from tests.load.process import usage

RATIOS = (("handler", "threads"), ("handler", "aio"), ("handler", "flask"), ("front", "aio"), ("rest", "flask"))
N_CALLERS = 64

Measure = Callable[[int], list[float]]  # makes so many calls one after the other; returns their seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="of each round, one after the other")
    parser.add_argument("--rounds", type=int, default=5, help="of each server, in turn")
    parser.add_argument("--bytes", type=int, default=1000, help="of the tensor")
    parser.add_argument("--streams", type=int, default=1000, help="open at once, at the front")
    measure(parser.parse_args())


def measure(options: argparse.Namespace) -> None:
    message = make_request(options.bytes)
    with started("front") as front, started("threads") as threads, started("aio") as aio:
        with handlers() as served, bare_flask() as flask_port:
            ways: dict[str, Measure] = {
                "handler": lambda n: call_one_after_the_other(served.grpc_port, message, n),
                "front": lambda n: call_one_after_the_other(front[0], message, n),
                "threads": lambda n: call_one_after_the_other(threads[0], message, n),
                "aio": lambda n: call_one_after_the_other(aio[0], message, n),
                "rest": lambda n: call_over_http(served.http_port, infer("echo", options.bytes), n),
                "flask": lambda n: call_over_http(flask_port, http_request("/echo", message), n),
            }
            compare(ways, options.rounds, options.calls)
            ports = {"handler": served.grpc_port, "front": front[0], "aio": aio[0]}
            pids = {"gRPC process": served.grpc_pid, "front": served.front_pid, "bare aio": aio[1]}
            load(ports, pids, message, options)
        asyncio.run(hold_streams(*front, options.streams))


def compare(ways: dict[str, Measure], n_rounds: int, n_calls: int) -> None:
    """Measures all ways in turn; prints their times, and the medians of the rounds' ratios."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    medians: list[dict[str, float]] = []
    for _ in range(n_rounds):
        medians.append({})
        for name, way in ways.items():
            seconds = way(n_calls)
            times[name] += seconds
            medians[-1][name] = statistics.median(seconds)
    for name, seconds in times.items():
        print(f"{name:8} {describe(seconds)}")
    for name, other in RATIOS:
        ratios = [found[name] / found[other] for found in medians]
        print(f"{name} / {other}: {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def load(ports: dict[str, int], pids: dict[str, int], message: bytes, options: argparse.Namespace) -> None:
    """Calls several servers from many callers, in turn; prints calls a second, and what a call takes of processes."""
    rates: dict[str, list[float]] = {name: [] for name in ports}
    n_calls = options.calls * 2
    before = {name: usage(pid).cpu for name, pid in pids.items()}
    for _ in range(options.rounds):
        for name, port in ports.items():
            rates[name].append(asyncio.run(call_side_by_side(port, message, N_CALLERS, n_calls)))
    for name, found in rates.items():
        print(f"{name:8} {statistics.median(found):.0f} calls/s from {N_CALLERS} callers in one process")
    costs = {name: (usage(pid).cpu - before[name]) / n_calls / options.rounds * 1e6 for name, pid in pids.items()}
    print("processor time of a call: " + ", ".join(f"{name} {cost:.0f} us" for name, cost in costs.items()))


def call_over_http(port: int, request: bytes, n_calls: int) -> list[float]:
    run(("127.0.0.1", port), request, 1, most=20)
    outcome = run(("127.0.0.1", port), request, 1, most=n_calls)
    assert not outcome.refusals, outcome.refusals[0][:500]
    return outcome.times


def call_one_after_the_other(port: int, request: bytes, n_calls: int) -> list[float]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(20):
            call(request)
        seconds = []
        for _ in range(n_calls):
            start = time.perf_counter()
            call(request)
            seconds.append(time.perf_counter() - start)
        return seconds


async def call_side_by_side(port: int, request: bytes, n_callers: int, n_calls: int) -> float:
    """Returns how many calls a second come back."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        rest = iter(range(n_calls))

        async def caller() -> None:
            for _ in rest:
                await call(request)

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(n_callers)))
        return n_calls / (time.perf_counter() - start)


async def hold_streams(port: int, pid: int, n_streams: int) -> None:
    """Opens streams, has each answer, and tells what they cost the gRPC process while they are idle."""
    request = make_request(8)
    before = Memory.of(pid)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        start = time.perf_counter()
        streams = [method() for _ in range(n_streams)]
        await asyncio.gather(*(answered(stream, request) for stream in streams))
        opened = time.perf_counter() - start
        memory = Memory.of(pid)
        start = time.perf_counter()
        await asyncio.gather(*(answered(stream, request) for stream in streams))
        again = time.perf_counter() - start
        await asyncio.gather(*(stream.done_writing() for stream in streams))
        codes = [await stream.code() for stream in streams]
    print(
        f"{n_streams} streams: opened and answered in {opened:.2f} s, answered again in {again:.2f} s, "
        f"{memory.n_threads} threads, {(memory.rss - before.rss) / n_streams / 1000:.1f} kB each, "
        f"{codes.count(grpc.StatusCode.OK)} ended well"
    )


async def answered(stream: Any, request: bytes) -> None:
    await stream.write(request)
    assert await stream.read() is not grpc.aio.EOF


class Memory:
    """The resident memory and threads of a process."""

    def __init__(self, rss: int, n_threads: int) -> None:
        self.rss = rss
        self.n_threads = n_threads

    @classmethod
    def of(cls, pid: int) -> Memory:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":\t") for line in lines if ":\t" in line)
        return cls(1024 * int(fields["VmRSS"].split()[0]), int(fields["Threads"]))


def describe(seconds: list[float]) -> str:
    quantiles = statistics.quantiles(seconds, n=100)
    return f"p50 {1000 * quantiles[49]:.3f} ms, p99 {1000 * quantiles[98]:.3f} ms of {len(seconds)} calls"


def make_request(n_bytes: int) -> bytes:
    from tests.dialects.kserve.grpc.client import infer_request
    from tests.dialects.kserve.grpc.conftest import Tensor

    return bytes(infer_request("echo", Tensor("x", "UINT8", [n_bytes], raw=bytes(n_bytes))).SerializeToString())


if __name__ == "__main__":
    main()
