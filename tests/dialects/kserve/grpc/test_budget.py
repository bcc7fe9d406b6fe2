"""Memory of the gRPC process: no message is read of whom has no key, and all messages have a common budget."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import make_worker, serving
from tests.support.function_worker import FunctionWorker

MIB = 1 << 20
MESSAGE = 15 * MIB
KEY = (("authorization", "Bearer good"),)
WRONG = (("authorization", "Bearer bad"),)
UNAUTHENTICATED, EXHAUSTED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def keyed() -> Iterator[GrpcFront]:
    config = GrpcConfig(keys=("good",), max_message=16 * MIB, max_bytes=48 * MIB)
    with serving(make_worker(), config) as front:
        yield front


def rss(front: GrpcFront, field: str = "VmRSS") -> int:
    """Returns bytes of the process's memory; VmHWM: the most that it ever had."""
    lines = Path(f"/proc/{front.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) << 10


def forget_peak(front: GrpcFront) -> None:
    Path(f"/proc/{front.pid}/clear_refs").write_text("5")


def large(n_bytes: int = MESSAGE) -> bytes:
    """Makes a request of a model that is not there."""
    request = infer_request("none", Tensor("x", "UINT8", [n_bytes], raw=bytes(n_bytes)))
    return bytes(request.SerializeToString())


async def codes(stub: Stub, method: str, n: int, metadata: Any) -> Counter[grpc.StatusCode]:
    async def one() -> grpc.StatusCode:
        try:
            await stub.unary(method, large(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    return Counter(await asyncio.gather(*(one() for _ in range(n))))


@pytest.mark.parametrize("metadata", [(), WRONG], ids=["no key", "a wrong key"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady"])
def test_no_message_is_read_of_whom_has_no_key(keyed: GrpcFront, metadata: Any, method: str) -> None:
    before = rss(keyed)
    forget_peak(keyed)

    answers = talk(keyed.port, lambda stub: codes(stub, method, 8, metadata))

    assert answers == {UNAUTHENTICATED: 8}
    assert rss(keyed, "VmHWM") - before < MESSAGE


def test_methods_that_are_open_to_all_read_nothing(keyed: GrpcFront) -> None:
    before = rss(keyed)
    forget_peak(keyed)

    assert talk(keyed.port, lambda stub: codes(stub, "ServerLive", 8, ())) == {grpc.StatusCode.OK: 8}

    assert rss(keyed, "VmHWM") - before < MESSAGE


def test_messages_have_a_common_budget_which_ended_calls_give_back(worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> Any:
        tensor = Tensor("x", "UINT8", [2 * MIB], raw=bytes(2 * MIB))
        running = asyncio.ensure_future(stub.infer(infer_request("hang", tensor)))
        while not worker.n_running:
            await asyncio.sleep(0.01)
        refused = await status(stub.infer(infer_request("echo", tensor)))
        running.cancel()
        while worker.n_running:
            await asyncio.sleep(0.01)
        return refused, await stub.infer(infer_request("echo", tensor))

    with serving(worker, GrpcConfig(max_message=4 * MIB, max_bytes=3 * MIB)) as front:
        (code, words, _), answer = talk(front.port, scenario)

    assert code is EXHAUSTED
    assert f"exceed the {3 * MIB} bytes allowed" in words
    assert len(answer.raw_output_contents[0]) == 2 * MIB


def test_a_message_that_does_not_come_makes_room_for_others_after_a_while(worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> Any:
        silent = asyncio.ensure_future(status(stub.without_message("ModelInfer")))
        request = infer_request("echo", Tensor("x", "UINT8", [3 * MIB], raw=bytes(3 * MIB)))
        n_answers, refusals = 0, []
        while not silent.done():
            try:
                await stub.infer(request)
                n_answers += 1
            except grpc.aio.AioRpcError as error:
                refusals.append(error.code())
            await asyncio.sleep(0.1)
        return n_answers, set(refusals), silent.result(), len((await stub.infer(request)).raw_output_contents[0])

    with serving(worker, GrpcConfig(max_message=4 * MIB, max_bytes=6 * MIB)) as front:
        for _ in range(10):  # a busy machine may ask nothing in the second in which there is no room
            n_answers, refusals, silent, n_bytes = talk(front.port, scenario)
            if refusals:
                break

    assert refusals == {EXHAUSTED}
    assert silent[0] is EXHAUSTED
    assert "came slowly" in silent[1]
    assert (n_answers > 0, n_bytes) == (True, 3 * MIB)


def test_a_message_that_is_late_counts_as_the_largest_until_it_has_come(worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> Any:
        calls = [asyncio.ensure_future(status(stub.without_message("ModelInfer"))) for _ in range(2)]
        refused, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        tensor = Tensor("x", "UINT8", [MIB], raw=bytes(MIB))
        answers = [await stub.infer(infer_request("echo", tensor))]
        for call in waiting:
            call.cancel()
        answers.append(await stub.infer(infer_request("echo", tensor)))
        return [call.result()[0] for call in refused], len(waiting), answers

    with serving(worker, GrpcConfig(max_message=4 * MIB, max_bytes=6 * MIB)) as front:
        codes, n_waiting, answers = talk(front.port, scenario)

    assert codes == [EXHAUSTED]
    assert n_waiting == 1
    assert [len(answer.raw_output_contents[0]) for answer in answers] == [MIB, MIB]
