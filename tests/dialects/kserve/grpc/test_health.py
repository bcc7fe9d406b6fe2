"""gRPC's own health protocol, asked with grpcio's own stubs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import gevent
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.dialects.kserve.grpc.standard_services import HealthCheckResponse
from tests.dialects.kserve.grpc.client import TIMEOUT, Stub, in_thread, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import make_worker, serving
from tests.dialects.kserve.grpc.test_budget import forget_peak, rss
from tests.support.function_worker import FunctionWorker

T = TypeVar("T")

MIB = 1 << 20
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
SERVICE = "inference.GRPCInferenceService"


def probe(front: GrpcFront, scenario: Callable[[Any], Awaitable[T]]) -> T:
    """Runs a scenario with grpcio's stub for health; this thread's greenlets go on meanwhile."""

    async def with_channel() -> T:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel:
            return await scenario(health_pb2_grpc.HealthStub(channel))

    return in_thread(asyncio.run, with_channel())


def request(service: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=service)


def check(front: GrpcFront, service: str = "") -> int:
    async def scenario(stub: Any) -> int:
        answer: int = (await stub.Check(request(service), timeout=TIMEOUT)).status
        return answer

    return probe(front, scenario)


async def next_status(call: Any) -> int:
    answer: int = (await asyncio.wait_for(call.read(), TIMEOUT)).status
    return answer


@pytest.mark.parametrize("service", ["", SERVICE])
def test_a_check_says_what_readiness_says(front: GrpcFront, worker: FunctionWorker, service: str) -> None:
    assert check(front, service) == SERVING
    worker.is_ready = False
    try:
        assert check(front, service) == NOT_SERVING
    finally:
        worker.is_ready = True


def test_a_check_of_an_unknown_service_is_not_found(front: GrpcFront) -> None:
    async def scenario(stub: Any) -> Any:
        return await status(stub.Check(request("inference.Other"), timeout=TIMEOUT))

    assert probe(front, scenario)[0] is grpc.StatusCode.NOT_FOUND


def test_a_watch_tells_each_change_once(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Any) -> list[int]:
        watch = stub.Watch(request(SERVICE), timeout=TIMEOUT)
        seen = [await next_status(watch)]
        worker.is_ready = False
        seen.append(await next_status(watch))
        worker.is_ready = True
        seen.append(await next_status(watch))
        watch.cancel()
        return seen

    try:
        assert probe(front, scenario) == [SERVING, NOT_SERVING, SERVING]
    finally:
        worker.is_ready = True


def test_a_watch_of_an_unknown_service_says_so_and_stays_open(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Any) -> tuple[int, bool]:
        unknown = stub.Watch(request("inference.Other"), timeout=TIMEOUT)
        known = stub.Watch(request(), timeout=TIMEOUT)
        seen = await next_status(unknown)
        await next_status(known)
        worker.is_ready = False
        assert await next_status(known) == NOT_SERVING  # of which the other one is not told
        is_open = not unknown.done()
        unknown.cancel()
        known.cancel()
        return seen, is_open

    try:
        assert probe(front, scenario) == (SERVICE_UNKNOWN, True)
    finally:
        worker.is_ready = True


def test_a_server_that_stops_says_that_it_serves_no_more_and_does_not_wait_for_who_watches() -> None:
    with serving(make_worker()) as front:
        is_watched = threading.Event()

        async def scenario(stub: Any) -> tuple[list[int], grpc.StatusCode]:
            watch = stub.Watch(request(), timeout=TIMEOUT)
            seen = [await next_status(watch)]
            is_watched.set()
            seen.append(await next_status(watch))
            return seen, await watch.code()

        watching = gevent.spawn(probe, front, scenario)
        assert in_thread(is_watched.wait, TIMEOUT)
        with gevent.Timeout(TIMEOUT / 2):
            front.stop(TIMEOUT)

        assert watching.get(timeout=TIMEOUT) == ([SERVING, NOT_SERVING], grpc.StatusCode.UNAVAILABLE)


def test_who_watches_leaves_room_for_calls() -> None:
    async def scenario(stub: Any) -> grpc.StatusCode:
        watches = [stub.Watch(request(), timeout=TIMEOUT) for _ in range(2)]
        assert [await next_status(watch) for watch in watches] == [SERVING, SERVING]
        refused = await stub.Watch(request(), timeout=TIMEOUT).code()
        watches[0].cancel()
        while await (again := stub.Watch(request(), timeout=TIMEOUT)).read() is grpc.aio.EOF:
            pass  # until the server has seen that one is gone
        again.cancel()
        return grpc.StatusCode(refused)

    with serving(make_worker(), GrpcConfig(max_calls=20)) as front:
        assert probe(front, scenario) is grpc.StatusCode.RESOURCE_EXHAUSTED


# Keys, and requests of anybody.


@pytest.fixture(scope="module")
def keyed() -> Iterator[GrpcFront]:
    config = GrpcConfig(keys=("good",), max_message=16 * MIB, max_bytes=48 * MIB)
    with serving(make_worker(), config) as front:
        yield front


def test_probes_need_no_key(keyed: GrpcFront) -> None:
    async def scenario(stub: Any) -> int:
        watch = stub.Watch(request(), timeout=TIMEOUT)
        seen = await next_status(watch)
        watch.cancel()
        return seen

    assert check(keyed) == SERVING
    assert probe(keyed, scenario) == SERVING


def test_requests_of_anybody_fill_no_memory(keyed: GrpcFront) -> None:
    before = rss(keyed)
    forget_peak(keyed)

    async def scenario(stub: Any) -> set[grpc.StatusCode]:
        calls = [stub.Check(request("x" * 15 * MIB), timeout=TIMEOUT) for _ in range(32)]
        return {await call.code() for call in calls}

    codes = probe(keyed, scenario)

    assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK}
    assert rss(keyed, "VmHWM") - before < 12 * 15 * MIB  # four of them at once, and copies


def test_requests_that_never_come_end_and_keep_nobody_from_an_answer(keyed: GrpcFront) -> None:
    async def scenario(stub: Stub) -> tuple[int, set[grpc.StatusCode]]:
        late = [stub.without_message("Check", "grpc.health.v1.Health") for _ in range(4)]
        await asyncio.gather(*(call.wait_for_connection() for call in late))
        more = [stub.without_message("Check", "grpc.health.v1.Health") for _ in range(8)]
        answers = [HealthCheckResponse.FromString(await call).status for call in more]
        return answers.count(SERVING), {(await status(call))[0] for call in late}

    assert talk(keyed.port, scenario) == (8, {grpc.StatusCode.DEADLINE_EXCEEDED})
    assert check(keyed, SERVICE) == SERVING


def test_calls_are_served_beside_probes(keyed: GrpcFront) -> None:
    async def scenario(stub: Stub) -> Any:
        return (await stub.infer(infer_request("echo"), metadata=(("authorization", "Bearer good"),))).model_name

    assert talk(keyed.port, scenario) == "echo"
