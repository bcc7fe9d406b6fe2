"""Counts of the calls over gRPC, as the server's metrics show them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from corosrv.dialects.kserve.grpc.front import GrpcCollector, GrpcFront
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import make_worker, serving

SEVEN = Tensor("x", "INT32", [1], data=[7])


@pytest.fixture
def front() -> Iterator[GrpcFront]:
    with serving(make_worker()) as front:
        yield front


def await_count(front: GrpcFront, n: int, method: str, code: str) -> None:
    with gevent.Timeout(20, False):
        while front.stats.ended[method, code] != n:
            gevent.sleep(0.005)
    assert front.stats.ended[method, code] == n, front.stats.ended


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition in the client's event loop, for 10 s at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def await_streams(front: GrpcFront, n: int) -> None:
    with gevent.Timeout(20, False):
        while front.stats.n_streams != n:
            gevent.sleep(0.005)
    assert front.stats.n_streams == n


def test_calls_are_counted_by_method_and_code(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> None:
        for _ in range(3):
            await stub.infer(infer_request("echo", SEVEN))
        await status(stub.infer(infer_request("nobody")))
        await status(stub.infer(infer_request("hang"), timeout=1.0))
        cancelled = stub.infer(infer_request("echo", SEVEN))
        cancelled.cancel()

    talk(front.port, scenario)

    await_count(front, 3, "ModelInfer", "OK")
    await_count(front, 1, "ModelInfer", "NOT_FOUND")
    await_count(front, 1, "ModelInfer", "DEADLINE_EXCEEDED")


def test_an_open_stream_is_counted_until_it_ends(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> None:
        stream = stub.stream()
        await stream.write(infer_request("hang"))
        await until(lambda: front.stats.n_streams == 1)
        stream.cancel()

    talk(front.port, scenario)

    await_streams(front, 0)
    await_count(front, 1, "ModelStreamInfer", "CANCELLED")


def test_counts_outlive_the_process_and_its_streams_do_not(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> None:
        await stub.infer(infer_request("echo", SEVEN))
        stream = stub.stream()
        await stream.write(infer_request("hang"))
        await until(lambda: bool(front.stats.n_streams and front.stats.ended))
        assert front.pid is not None
        os.kill(front.pid, signal.SIGKILL)

    talk(front.port, scenario)

    await_streams(front, 0)
    assert front.stats.ended["ModelInfer", "OK"] == 1


def test_the_metrics_name_what_was_counted(front: GrpcFront) -> None:
    front.stats.ended["ModelInfer", "OK"] = 2
    front.stats.n_streams = 1
    registry = CollectorRegistry()
    registry.register(GrpcCollector(front.stats))

    text = generate_latest(registry).decode()

    assert 'corosrv_grpc_calls_total{code="OK",method="ModelInfer"} 2.0' in text
    assert "corosrv_grpc_open_streams 1.0" in text
