"""Calls over gRPC with an idempotency key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from corosrv.base.errors import HandlerFailed
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import serving
from tests.workers.dispatch.hosts import FakeCall, FakeHost, card, outputs


class CountingHost(FakeHost):
    """Answers each call at once, with the number of calls so far; `fails` fails, and `waits` waits."""

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        running = super().start_call(permit, call, listener)
        match self.handlers[call.handler].name:
            case "fails":
                running.fail(HandlerFailed("the handler failed"))
            case "count":
                running.finish(outputs(Tensor("n", "UINT8", [1], data=[self.n_started])))
        return running


@pytest.fixture
def front() -> Iterator[GrpcFront]:
    dispatcher = Dispatcher()
    dispatcher.add_host(CountingHost("p/0", [card("count"), card("fails"), card("waits")]))
    with serving(dispatcher, GrpcConfig(), check_ready=lambda: None) as front:
        yield front


def infer(front: GrpcFront, request: Any, key: str = "k") -> tuple[int, dict[str, Any]]:
    """Returns the answer's number and the trailing metadata."""

    async def scenario(stub: Stub) -> Any:
        call = stub.infer(request, metadata=[("idempotency-key", key)])
        return (await call).raw_output_contents[0][0], dict(await call.trailing_metadata())

    return talk(front.port, scenario)


def failure(front: GrpcFront, request: Any, key: str = "k") -> tuple[grpc.StatusCode, str, dict[str, str]]:
    async def scenario(stub: Stub) -> Any:
        return await status(stub.infer(request, metadata=[("idempotency-key", key)]))

    return talk(front.port, scenario)


def test_a_repeated_call_gets_the_answer_of_the_first_and_says_so(front: GrpcFront) -> None:
    first, second, other = (infer(front, infer_request("count"), key) for key in ("k", "k", "other"))

    assert (first[0], second[0], other[0]) == (1, 1, 2)
    assert second[1]["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first[1]


def test_a_failure_is_repeated_too(front: GrpcFront) -> None:
    first, second = (failure(front, infer_request("fails")) for _ in range(2))

    assert first[:2] == second[:2] == (grpc.StatusCode.INTERNAL, "the handler failed")
    assert ("idempotency-replayed" in first[2], "idempotency-replayed" in second[2]) == (False, True)


def test_another_request_with_the_key_is_an_invalid_argument(front: GrpcFront) -> None:
    infer(front, infer_request("count"))

    code, text, _ = failure(front, infer_request("count", parameters={"other": 1}))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "Idempotency-Key" in text


def test_a_key_that_is_too_long_is_refused(front: GrpcFront) -> None:
    assert failure(front, infer_request("count"), "k" * 256)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_while_the_first_call_runs_the_second_is_told_when_to_come_back(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> Any:
        options = {"metadata": [("idempotency-key", "k")]}
        first = stub.stream(**options)
        await first.write(infer_request("waits"))
        await first.write(infer_request("waits"))  # the same, on one stream
        answer = await first.read()
        first.cancel()
        return answer.error_message

    assert "still running" in talk(front.port, scenario)
