"""The codes of gRPC: the same table of errors as over REST, what is absent, and calls beyond the bound."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from corosrv.base import errors
from corosrv.base.errors import CorosrvError
from corosrv.dialects.kserve.grpc import guard, protocol
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.dialects.kserve.grpc.messages import MAX_CALLS
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import serving
from tests.support.function_worker import FunctionWorker

Code = grpc.StatusCode

TABLE = [
    (errors.CallRefused("the picture is too small"), Code.INVALID_ARGUMENT),
    (errors.InvalidTensor("a", "is missing"), Code.INVALID_ARGUMENT),
    (errors.PromptTooLong(9, 8), Code.INVALID_ARGUMENT),
    (errors.NotFound("there is no model 'x'"), Code.NOT_FOUND),
    (errors.Conflict("two models match alike: a, b"), Code.FAILED_PRECONDITION),
    (errors.BodyTooLarge(9), Code.RESOURCE_EXHAUSTED),
    (errors.AnswerTooLarge(9), Code.RESOURCE_EXHAUSTED),
    (errors.QueueFull("64 calls wait already"), Code.RESOURCE_EXHAUSTED),
    (errors.HandlerFailed("the handler failed"), Code.INTERNAL),
    (errors.NotOffered("the model only streams"), Code.UNIMPLEMENTED),
    (errors.WorkerLost("the worker was lost"), Code.ABORTED),
    (errors.Unavailable("no worker is ready"), Code.UNAVAILABLE),
    (errors.ShuttingDown("the server is stopping"), Code.UNAVAILABLE),
    (errors.DeadlinePassed("the call's time is over"), Code.DEADLINE_EXCEEDED),
    (errors.CallCancelled("the call was cancelled"), Code.CANCELLED),
    (errors.Unauthorized("no API key"), Code.UNAUTHENTICATED),
]


@pytest.mark.parametrize(("error", "code"), TABLE, ids=lambda value: type(value).__name__)
def test_every_error_has_its_code_its_words_and_its_pause(error: CorosrvError, code: grpc.StatusCode) -> None:
    pause = () if error.retry_after is None else (("grpc-retry-pushback-ms", str(1000 * error.retry_after)),)

    found = guard.of_error(error)

    assert (found.code, found.text, found.trailing) == (code, str(error), pause)


def test_each_kind_of_error_has_a_code() -> None:
    assert set(guard._CODES) == set(errors.ErrorKind)


@pytest.mark.parametrize(
    "method",
    [
        "ModelStatistics",
        "ModelConfig",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    ],
)
def test_what_is_not_offered_is_unimplemented(front: GrpcFront, method: str) -> None:
    async def scenario(stub: Stub) -> Any:
        return await status(stub._channel.unary_unary(f"/{protocol.SERVICE}/{method}")(b""))

    assert talk(front.port, scenario)[0] is Code.UNIMPLEMENTED


def test_a_model_that_only_streams_is_unimplemented_for_unary_calls(front: GrpcFront, worker: FunctionWorker) -> None:
    def refuse(call: Any) -> None:
        raise errors.NotOffered("the model only streams")

    worker.add(refuse, "only_streams")

    async def scenario(stub: Stub) -> Any:
        return await status(stub.infer(infer_request("only_streams")))

    assert talk(front.port, scenario)[:2] == (Code.UNIMPLEMENTED, "the model only streams")


def test_thousands_of_calls_may_be_open_and_those_beyond_are_refused(worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> Any:
        streams = [stub.stream() for _ in range(2)]
        for stream in streams:
            await stream.write(infer_request("echo"))
            assert await stream.read() is not grpc.aio.EOF
        beyond = await status(stub.infer(infer_request("echo")))
        streams[0].cancel()
        return beyond[0], (await _until_there_is_room(stub)).model_name

    with serving(worker, GrpcConfig(max_calls=2)) as front:
        assert talk(front.port, scenario) == (Code.RESOURCE_EXHAUSTED, "echo")
    assert MAX_CALLS >= 5000


async def _until_there_is_room(stub: Stub) -> Any:
    """Asks again and again: each answer is a turn of the event loop that has to notice the cancelled stream."""
    while True:
        try:
            return await stub.infer(infer_request("echo"))
        except grpc.aio.AioRpcError as error:
            if error.code() is not Code.RESOURCE_EXHAUSTED:
                raise
