"""Triton's own client over gRPC, unchanged, in the same process as our messages."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from corosrv.dialects.kserve.grpc import protocol  # beside Triton's messages of the same names
from corosrv.dialects.kserve.grpc.front import GrpcFront
from tests.dialects.kserve.grpc.client import in_thread
from tests.support.function_worker import FunctionWorker
from tests.support.waiting import wait_until


@pytest.fixture
def client(front: GrpcFront) -> Iterator[Any]:
    client = in_thread(triton.InferenceServerClient, f"127.0.0.1:{front.port}")
    yield client
    in_thread(client.close)


def tensor(name: str, array: Any, datatype: str) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def call(function: Any, *arguments: Any, **options: Any) -> Any:
    return in_thread(lambda: function(*arguments, **options))


def test_messages_of_the_same_names_live_side_by_side() -> None:
    assert triton.service_pb2.ModelInferRequest.DESCRIPTOR.full_name == protocol.ModelInferRequest.DESCRIPTOR.full_name


@pytest.mark.parametrize(
    "imports",
    [
        "corosrv.dialects.kserve.grpc.protocol, tritonclient.grpc",
        "tritonclient.grpc, corosrv.dialects.kserve.grpc.protocol",
    ],
)
def test_either_may_be_imported_first(imports: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {imports}"], check=True, timeout=60)


def test_our_fields_have_the_numbers_of_its_messages() -> None:
    names = [name for name in dir(protocol) if name.endswith(("Request", "Response", "Parameter", "Contents"))]
    fields = {name: numbers(getattr(protocol, name).DESCRIPTOR) for name in names}

    assert len(names) == 17
    assert fields == {name: numbers(getattr(triton.service_pb2, name).DESCRIPTOR) for name in names}


def numbers(descriptor: Any) -> dict[str, Any]:
    """Returns the fields of a message, of those within it as well, with numbers, types and labels."""
    own = {
        field.name: (field.number, field.type, field.is_repeated, field.message_type and field.message_type.full_name)
        for field in descriptor.fields
    }
    return {**own, **{inner.name: numbers(inner) for inner in descriptor.nested_types}}


def test_it_finds_the_server_and_its_models(client: Any) -> None:
    assert call(client.is_server_live)
    assert call(client.is_server_ready)
    assert call(client.is_model_ready, "echo")
    assert not call(client.is_model_ready, "nobody")
    assert call(client.get_server_metadata).name == "corosrv"
    assert [tensor.name for tensor in call(client.get_model_metadata, "add", "2").inputs] == ["a"]
    assert "echo" in {model.name for model in call(client.get_model_repository_index).models}


def test_it_infers_numbers_and_texts(client: Any) -> None:
    numbers_sent = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    texts_sent = numpy.array([b"a", "ü".encode(), b""], dtype=object)

    answer = call(
        client.infer,
        "echo",
        [tensor("x", numbers_sent, "FP32"), tensor("t", texts_sent, "BYTES")],
        request_id="q7",
        parameters={"word": "w", "n": 3, "flag": True},
        priority=2,
        timeout=20_000_000,
    )

    assert (answer.as_numpy("x") == numbers_sent).all()
    assert list(answer.as_numpy("t")) == list(texts_sent)
    response = answer.get_response()
    assert (response.id, response.model_name) == ("q7", "echo")
    assert response.parameters["flag"].bool_param is True


def test_it_reads_our_errors(client: Any) -> None:
    with pytest.raises(InferenceServerException) as error:
        call(client.infer, "nobody", [])

    assert error.value.status() == "StatusCode.NOT_FOUND"
    assert "nobody" in error.value.message()


def test_its_call_has_the_deadline_that_it_asks_for(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
        call(client.infer, "hang", [], client_timeout=0.2)


def test_it_cancels(client: Any, worker: FunctionWorker) -> None:
    running = call(client.async_infer, "hang", [], callback=lambda result, error: None)
    wait_until(lambda: worker.n_running == 1)
    call(running.cancel)

    wait_until(lambda: worker.n_running == 0)


def test_it_streams_with_a_final_answer(client: Any) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    n = numpy.array([3], dtype=numpy.int32)

    def stream() -> list[tuple[Any, Any]]:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("count", [tensor("n", n, "INT32")], request_id="q", enable_empty_final_response=True)
        client.async_stream_infer("nobody", [], request_id="bad")
        received = [answers.get(timeout=10) for _ in range(5)]
        client.stop_stream()
        return received

    received = in_thread(stream)

    (error,) = (error for _, error in received if error is not None)
    results = [result for result, error in received if error is None]
    assert "nobody" in str(error)
    assert [result.as_numpy("n")[0] for result in results[:3]] == [0, 1, 2]
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result in results]
    assert finals == [False, False, False, True]
    assert {result.get_response().id for result in results} == {"q"}


def test_its_keep_alive_pings_are_let_in(front: GrpcFront) -> None:
    options = triton.KeepAliveOptions(keepalive_time_ms=10_000, keepalive_permit_without_calls=True)

    def ask() -> bool:
        with triton.InferenceServerClient(f"127.0.0.1:{front.port}", keepalive_options=options) as client:
            return bool(client.is_server_live())

    assert in_thread(ask)
