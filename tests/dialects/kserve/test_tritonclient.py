"""Triton's own client over HTTP, as its users call it: in a process without gevent's patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import GUNICORN, Server

numpy = pytest.importorskip("numpy")
http = pytest.importorskip("tritonclient.http")

ARRAYS = {
    "BOOL": numpy.array([[True, False]]),
    "INT8": numpy.array([[-128, 127]], dtype="i1"),
    "INT16": numpy.array([[-5, 5]], dtype="i2"),
    "INT32": numpy.array([[-5, 5]], dtype="i4"),
    "INT64": numpy.array([[2**53 + 1, -(2**63)]], dtype="i8"),
    "UINT8": numpy.array([[0, 255]], dtype="u1"),
    "UINT16": numpy.array([[0, 5]], dtype="u2"),
    "UINT32": numpy.array([[0, 2**32 - 1]], dtype="u4"),
    "UINT64": numpy.array([[0, 2**64 - 1]], dtype="u8"),
    "FP16": numpy.array([[1.5, numpy.inf]], dtype="f2"),
    "FP32": numpy.array([[1.5, numpy.nan]], dtype="f4"),
    "FP64": numpy.array([[1e300, 0.1]], dtype="f8"),
    "BYTES": numpy.array([[b"\xff\x00", "grüße".encode()]], dtype=object),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = (*GUNICORN, "-b", "127.0.0.1:0", "tests.dialects.kserve.served:application")
    server = Server(command, {}, tmp_path_factory.mktemp("triton") / "log")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def tensor(name: str, datatype: str, array: Any, *, is_binary: bool = True) -> Any:
    built = http.InferInput(name, list(array.shape), datatype)
    built.set_data_from_numpy(array, binary_data=is_binary)
    return built


def numbers(is_binary: bool = True) -> list[Any]:
    return [tensor(name, "INT32", numpy.array([1, 2], dtype="i4"), is_binary=is_binary) for name in "ab"]


def test_health_and_metadata(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("add", "2")
    assert not client.is_model_ready("loading")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "corosrv"
    assert client.get_model_metadata("add", "2")["versions"] == ["2"]
    rows = client.get_model_repository_index()
    assert {"name": "loading", "version": "1", "state": "LOADING", "reason": "it starts"} in rows


@pytest.mark.parametrize("datatype", ARRAYS)
def test_arrays_of_every_datatype_come_back(client: Any, datatype: str):
    array = ARRAYS[datatype]

    answer = client.infer("echo", [tensor("a", datatype, array)])

    numpy.testing.assert_array_equal(answer.as_numpy("a"), array)
    assert answer.as_numpy("a").dtype == array.dtype


@pytest.mark.parametrize("datatype", ["BOOL", "INT64", "UINT64", "FP64"])
def test_arrays_come_back_as_json(client: Any, datatype: str):
    array = ARRAYS[datatype]
    outputs = [http.InferRequestedOutput("a", binary_data=False)]

    answer = client.infer("echo", [tensor("a", datatype, array, is_binary=False)], outputs=outputs)

    numpy.testing.assert_array_equal(answer.as_numpy("a"), array)


def test_outputs_are_asked_for_by_name(client: Any):
    outputs = [http.InferRequestedOutput("difference"), http.InferRequestedOutput("sum", binary_data=False)]

    answer = client.infer("add", numbers(), outputs=outputs, request_id="7", model_version="2")

    assert answer.as_numpy("sum").tolist() == [2, 4]
    assert answer.as_numpy("difference").tolist() == [0, 0]
    response = answer.get_response()
    assert (response["id"], response["model_version"]) == ("7", "2")
    assert [output["name"] for output in response["outputs"]] == ["difference", "sum"]


@pytest.mark.parametrize("way", ["gzip", "deflate"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_compression_both_ways(client: Any, way: str, is_binary: bool):
    answer = client.infer(
        "add", numbers(is_binary), request_compression_algorithm=way, response_compression_algorithm=way
    )

    assert answer.as_numpy("sum").tolist() == [2, 4]


def test_parameters_priority_and_time_out(client: Any):
    answer = client.infer("echo", [], priority=2, timeout=5_000_000, sequence_id=9, parameters={"mine": True})

    parameters = answer.get_response()["parameters"]
    assert parameters["mine"] is True
    assert parameters["sequence_id"] == 9
    assert "priority" not in parameters


def test_many_calls_at_once(client: Any, server: Server):
    with http.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as many:
        pending = [many.async_infer("echo", [tensor("a", "INT32", numpy.array([n], dtype="i4"))]) for n in range(40)]
        assert [int(call.get_result().as_numpy("a")[0]) for call in pending] == list(range(40))


@pytest.mark.parametrize(
    ("model", "inputs", "status", "words"),
    [
        ("none", numbers(), "404", "there is no model 'none'"),
        ("add", numbers()[:1], "400", "tensor 'b' is missing"),
        ("loading", [], "503", "is not ready"),
    ],
)
def test_an_errors_text_is_the_clients_message(client: Any, model: str, inputs: list[Any], status: str, words: str):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=words) as caught:
        client.infer(model, inputs)

    assert caught.value.status() == status


def test_what_is_not_offered_is_an_error(client: Any):
    from tritonclient.utils import InferenceServerException

    for ask in (client.get_inference_statistics, client.get_trace_settings, client.get_system_shared_memory_status):
        with pytest.raises(InferenceServerException):
            ask()
