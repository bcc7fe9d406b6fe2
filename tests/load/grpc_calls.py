"""Calls and streams over gRPC: `python -m tests.load.grpc_calls`, beside bare echo servers of grpcio in the same run.

The front has a model that echoes, in the server's own process, so that what is measured is the way there and back:
client, gRPC process, lane, dispatch, lane, gRPC process, client. The bare servers return the bytes that they get.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

SERVERS = ("front", "threads", "aio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="of each round, one after the other")
    parser.add_argument("--rounds", type=int, default=5, help="of each server, in turn")
    parser.add_argument("--bytes", type=int, default=1000, help="of the tensor")
    parser.add_argument("--streams", type=int, default=1000, help="open at once, at the front")
    parser.add_argument("--serve", choices=SERVERS, help="what a process of this command does")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    request = make_request(options.bytes)
    times: dict[str, list[float]] = {name: [] for name in SERVERS}
    with started("front") as front, started("threads") as threads, started("aio") as aio:
        ports = {"front": front[0], "threads": threads[0], "aio": aio[0]}
        for _ in range(options.rounds):
            for name, port in ports.items():
                times[name] += call_one_after_the_other(port, request, options.calls)
        for name, seconds in times.items():
            print(f"{name:8} {describe(seconds)}")
        for name in ("threads", "aio"):
            ratio = statistics.median(times["front"]) / statistics.median(times[name])
            print(f"front / {name}: {ratio:.2f} of the medians")
        print(f"front    {asyncio.run(call_side_by_side(ports['front'], request, 64, options.calls * 4))}")
        print(f"aio      {asyncio.run(call_side_by_side(ports['aio'], request, 64, options.calls * 4))}")
        asyncio.run(hold_streams(*front, options.streams))


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


async def call_side_by_side(port: int, request: bytes, n_callers: int, n_calls: int) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        rest = iter(range(n_calls))

        async def caller() -> None:
            for _ in rest:
                await call(request)

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(n_callers)))
        return f"{n_calls / (time.perf_counter() - start):.0f} calls/s from {n_callers} callers in one process"


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
    from tests.kserve.grpc.client import infer_request
    from tests.kserve.grpc.conftest import Tensor

    return bytes(infer_request("echo", Tensor("x", "UINT8", [n_bytes], raw=bytes(n_bytes))).SerializeToString())


@contextmanager
def started(name: str) -> Iterator[tuple[int, int]]:
    """Starts a server; gives its port, and the id of the process that speaks gRPC."""
    command = [sys.executable, "-m", "tests.load.grpc_calls", "--serve", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, pid = map(int, server.stdout.readline().split())
        try:
            yield port, pid or server.pid
        finally:
            server.kill()


def serve(name: str) -> None:
    {"front": serve_front, "threads": serve_threads, "aio": lambda: asyncio.run(serve_aio())}[name]()


def serve_front() -> None:
    import gevent

    from tests.kserve.grpc.conftest import make_worker, serving

    with serving(make_worker()) as front:
        print(front.port, front.pid, flush=True)
        gevent.sleep(3600)


def serve_threads() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((echo_handler(lambda request, context: request),))
    print(server.add_insecure_port("127.0.0.1:0"), 0, flush=True)
    server.start()
    server.wait_for_termination()


async def serve_aio() -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        return request

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((echo_handler(echo),))
    print(server.add_insecure_port("127.0.0.1:0"), 0, flush=True)
    await server.start()
    await server.wait_for_termination()


def echo_handler(echo: Any) -> Any:
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(echo)}
    return grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)


if __name__ == "__main__":
    main()
