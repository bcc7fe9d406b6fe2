"""Answers that are larger than a message may be, and conversions that are not made at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from corosrv.base.errors import AnswerTooLarge
from corosrv.dialects.kserve.grpc import conversions, protocol
from corosrv.dialects.kserve.grpc.asking import Outputs
from corosrv.dialects.kserve.grpc.front import GrpcConfig
from corosrv.dialects.kserve.grpc.service import encode
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import AskOutputs
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk, typed_request
from tests.dialects.kserve.grpc.conftest import serving
from tests.support.function_worker import FunctionCall, FunctionWorker

LIMIT = 1 << 20
SMALL, LARGE = (Tensor("n", "INT32", [1], data=[n]) for n in (10, LIMIT))


def zeros(call: FunctionCall) -> None:
    """Gives as many bytes as its input says."""
    (n,) = call.request.inputs[0].data
    call.send(Tensor("zeros", "UINT8", [n], raw=bytes(n)))


def test_an_answer_over_the_limit_ends_its_own_call_alone() -> None:
    worker = FunctionWorker()
    worker.add(zeros, "zeros", is_stream=True, unary="last")

    async def scenario(stub: Stub) -> Any:
        refused = [await status(stub.infer(request("zeros", LARGE))) for request in (infer_request, typed_request)]
        stream = stub.stream()
        await stream.write(infer_request("zeros", LARGE, id="large"))
        error = await stream.read()
        await stream.write(infer_request("zeros", SMALL))
        return refused, error, await stream.read()

    with serving(worker, GrpcConfig(max_message=LIMIT)) as front:
        refused, error, answer = talk(front.port, scenario)

    words = f"the answer is larger than the {LIMIT} bytes that a message may have"
    assert [(code, text) for code, text, _ in refused] == [(grpc.StatusCode.RESOURCE_EXHAUSTED, words)] * 2
    assert (error.error_message, error.infer_response.id) == (words, "large")
    assert (answer.error_message, answer.infer_response.raw_output_contents[0]) == ("", bytes(10))


@pytest.mark.parametrize("datatype", ["UINT8", "FP32", "BYTES"])
@pytest.mark.parametrize("request_", [infer_request("m"), typed_request("m", SMALL)])
def test_an_answer_that_is_far_over_the_limit_is_not_even_made(datatype: str, request_: Any) -> None:
    data = [b"x" * 2000] if datatype == "BYTES" else [1] * 2000
    tensor = Tensor("a", datatype, [len(data)], data=data)
    answer = Outputs(AskOutputs(1, [], {}, False, "m", ""), (tensor,))

    with pytest.raises(AnswerTooLarge):
        asyncio.run(encode(lambda *_: pytest.fail("it was made"), conversions.read(request_), answer, 1000))


@pytest.mark.parametrize("datatype", ["BOOL", "INT32", "FP64", "BYTES"])
def test_long_typed_contents_are_converted_in_pieces_and_exact(datatype: str) -> None:
    value: Any = b"ab" if datatype == "BYTES" else True if datatype == "BOOL" else 7
    tensor = Tensor("a", datatype, [200_000], data=[value] * 200_000)
    message = protocol.ModelInferRequest().inputs.add(name="a", datatype=datatype, shape=[200_000])

    conversions.add_typed(message.contents, tensor)

    assert conversions.raw_from_typed(message) == tensor.raw
    assert conversions.least_typed_size(tensor) <= message.contents.ByteSize()


def test_other_threads_run_while_millions_of_elements_become_typed() -> None:
    tensor = Tensor("a", "UINT8", [4_000_000], raw=bytes(4_000_000))
    message = protocol.ModelInferRequest().inputs.add(name="a", datatype="UINT8", shape=[4_000_000])
    n_turns, is_over = 0, threading.Event()

    def count_turns() -> None:
        nonlocal n_turns
        while not is_over.wait(0.001):
            n_turns += 1

    other = threading.Thread(target=count_turns)
    other.start()
    conversions.add_typed(message.contents, tensor)
    is_over.set()
    other.join()

    assert n_turns > 5
