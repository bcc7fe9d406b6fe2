"""Inputs over gRPC that refer to an object of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.formats.tensors import Tensor
from corosrv.workers.objects import ObjectContent, ObjectStore
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk, typed_request, value_of
from tests.dialects.kserve.grpc.conftest import serving
from tests.support.function_worker import FunctionCall, FunctionWorker

KEYS = ("anna-key", "bob-key")


def echo(call: FunctionCall) -> None:
    call.send(*call.request.inputs)


@pytest.fixture(scope="module")
def store() -> ObjectStore:
    return ObjectStore()


@pytest.fixture(scope="module")
def worker() -> FunctionWorker:
    worker = FunctionWorker()
    worker.add(echo, "echo")
    return worker


@pytest.fixture(scope="module")
def front(worker: FunctionWorker, store: ObjectStore) -> Iterator[GrpcFront]:
    with serving(worker, GrpcConfig(keys=KEYS), store) as front:
        yield front


def call(front: GrpcFront, request: Any, key: str = "anna-key") -> Any:
    async def scenario(stub: Stub) -> Any:
        return await stub.infer(request, metadata=[("x-api-key", key)])

    return talk(front.port, scenario)


def failure(front: GrpcFront, request: Any, key: str = "anna-key") -> tuple[grpc.StatusCode, str]:
    async def scenario(stub: Stub) -> Any:
        return await status(stub.infer(request, metadata=[("x-api-key", key)]))

    code, text, _ = talk(front.port, scenario)
    return code, text


def caller_of(front: GrpcFront, worker: FunctionWorker, key: str = "anna-key") -> str:
    call(front, infer_request("echo"), key)
    caller: str = worker.calls.pop().job.terms.caller
    return caller


def refer(request: Any, object_id: str, name: str = "o", shape: tuple[int, ...] = (2,)) -> Any:
    """Adds an input of INT32 that refers to an object."""
    tensor = request.inputs.add(name=name, datatype="INT32", shape=shape)
    tensor.parameters["object_ref"].string_param = object_id
    tensor.parameters["mine"].bool_param = True
    return request


def add_object(store: ObjectStore, content: bytes, caller: str) -> str:
    return store.create(ObjectContent.copy([content]), "0", time.monotonic(), caller=caller).id


@pytest.fixture
def object_id(front: GrpcFront, worker: FunctionWorker, store: ObjectStore) -> str:
    return add_object(store, b"\x01\0\0\0\x02\0\0\0", caller_of(front, worker))


def number(name: str, value: int) -> Tensor:
    return Tensor(name, "INT32", [1], data=[value])


def test_an_input_has_the_content_of_its_object_and_answers_are_raw(
    front: GrpcFront, worker: FunctionWorker, object_id: str
) -> None:
    answer = call(front, refer(infer_request("echo"), object_id))

    (tensor,) = worker.calls[0].request.inputs
    assert (tensor.name, tensor.data, dict(tensor.parameters)) == ("o", [1, 2], {"mine": True})
    assert list(answer.raw_output_contents) == [b"\x01\0\0\0\x02\0\0\0"]
    assert value_of(answer.outputs[0].parameters["mine"]) is True


@pytest.mark.parametrize("make", [infer_request, typed_request])
def test_objects_stand_among_contents_of_either_form_in_their_order(
    front: GrpcFront, worker: FunctionWorker, object_id: str, make: Any
) -> None:
    request = refer(make("echo", number("a", 7)), object_id)
    request.inputs.append(make("echo", number("z", 9)).inputs[0])
    if request.raw_input_contents:
        request.raw_input_contents.append(b"\x09\0\0\0")

    answer = call(front, request)

    assert [(tensor.name, tensor.data) for tensor in worker.calls[0].request.inputs] == [
        ("a", [7]),
        ("o", [1, 2]),
        ("z", [9]),
    ]
    assert bool(answer.raw_output_contents) is (make is infer_request)


def test_an_object_of_another_caller_is_not_found_and_an_expired_one_neither(
    front: GrpcFront, worker: FunctionWorker, store: ObjectStore, object_id: str
) -> None:
    expired = add_object(store, bytes(8), caller_of(front, worker))
    store.delete(expired, time.monotonic(), caller_of(front, worker))

    for key, reference in (("bob-key", object_id), ("anna-key", "gone"), ("anna-key", expired)):
        code, text = failure(front, refer(infer_request("echo"), reference), key)
        assert (code, reference in text) == (grpc.StatusCode.NOT_FOUND, True), text
    assert worker.calls == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.inputs[0].shape.__setitem__(0, 3), "8 bytes, where its shape needs 12"),
        (lambda r: r.inputs[0].contents.int_contents.append(1), "both contents and object_ref"),
        (lambda r: r.raw_input_contents.append(b"1234"), "1 entries for 0 inputs"),
        (lambda r: setattr(r.inputs[0].parameters["object_ref"], "int64_param", 5), "which is no text"),
    ],
)
def test_a_wrong_reference_is_an_invalid_argument(
    front: GrpcFront, worker: FunctionWorker, object_id: str, change: Any, words: str
) -> None:
    request = refer(infer_request("echo"), object_id)
    change(request)

    code, text = failure(front, request)

    assert (code, words in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text
    assert worker.calls == []


def test_a_stream_takes_objects_too(front: GrpcFront, worker: FunctionWorker, object_id: str) -> None:
    async def scenario(stub: Stub) -> Any:
        stream = stub.stream(metadata=[("x-api-key", "anna-key")])
        await stream.write(refer(infer_request("echo"), object_id))
        await stream.done_writing()
        return await asyncio.wait_for(stream.read(), 10)

    answer = talk(front.port, scenario)

    assert answer.error_message == ""
    assert list(answer.infer_response.raw_output_contents) == [b"\x01\0\0\0\x02\0\0\0"]


def test_a_server_without_objects_says_so(worker: FunctionWorker) -> None:
    with serving(worker) as front:
        code, text = failure(front, refer(infer_request("echo"), "any"))

    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "stores no objects" in text
