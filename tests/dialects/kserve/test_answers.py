"""Answers of calls: JSON, a binary tail, and compression."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import HandlerFailed, Refused
from corosrv.contracts.jobs.infer import HandlerCard, InferOutputs
from corosrv.dialects.kserve.infer_answer import encode_answer
from corosrv.formats.tensors import DATATYPES, Tensor
from tests.dialects.kserve.app import MAX_BODY
from tests.dialects.kserve.bodies import binary_body, json_input
from tests.dialects.kserve.test_infer_request import IN_JSON, json_elements
from tests.formats.tensors.values import ORDINARY

ECHO = "/v2/models/echo/infer"
LENGTH = "Inference-Header-Content-Length"


def encode(
    *tensors: Tensor, is_binary: Callable[[str], bool] = lambda name: False, max_json: int = 1 << 20
) -> tuple[dict[str, Any], list[bytes]]:
    encoded = encode_answer(HandlerCard("m"), None, InferOutputs(tensors), is_binary, max_json)
    assert encoded.is_binary is (len(encoded.pieces) > 1)
    return json.loads(encoded.pieces[0], parse_constant=pytest.fail), encoded.pieces[1:]


@pytest.mark.parametrize("datatype", IN_JSON)
@given(data=st.data())
def test_an_answers_data_are_flat_and_exact(datatype, data):
    elements = data.draw(st.lists(json_elements(datatype), min_size=4, max_size=4))

    (output,) = encode(Tensor("a", datatype, [2, 2], data=elements))[0]["outputs"]

    assert output == {"name": "a", "datatype": datatype, "shape": [2, 2], "data": elements}
    assert [type(element) for element in output["data"]] == [type(element) for element in elements]


@pytest.mark.parametrize("n", [8191, 8192, 8193, 100_000])
@pytest.mark.parametrize("datatype", IN_JSON)
def test_long_outputs_are_encoded_as_short_ones_are(datatype, n):
    element = ORDINARY[datatype].decode() if datatype == "BYTES" else ORDINARY[datatype]

    (output,) = encode(Tensor("a", datatype, [n], data=[element] * n))[0]["outputs"]

    assert output["data"] == [element] * n


@pytest.mark.parametrize(
    ("datatype", "element"),
    [
        ("FP32", math.nan),
        ("FP32", math.inf),
        ("FP64", -math.inf),
        ("FP64", math.nan),
        ("BYTES", b"\xff"),
        ("FP16", 1.0),
        ("BF16", 1.0),
    ],
)
@pytest.mark.parametrize("n", [1, 50_000])
def test_what_json_cannot_hold_asks_for_binary_data(datatype, element, n):
    tensor = Tensor("a", datatype, [n], data=[*[ORDINARY[datatype]] * (n - 1), element])

    with pytest.raises(Refused, match=r"output 'a' .*ask for it as binary data") as caught:
        encode(tensor)

    assert caught.value.status == 400
    assert encode(tensor, is_binary=lambda name: True)[1] == [tensor.raw]


ZEROS = Tensor("a", "UINT8", [100], raw=bytes(100))
DIGITS = Tensor("a", "UINT8", [20_000], data=[7] * 20_000)
TEXTS = Tensor("a", "BYTES", [3], data=["e" * 30, "", "é"])


@pytest.mark.parametrize("tensor", [ZEROS, DIGITS, TEXTS])
def test_an_answer_takes_as_much_json_as_is_allowed_and_no_byte_more(tensor):
    n_bytes = len(
        json.dumps(encode(tensor)[0]["outputs"][0]["data"], separators=(",", ":"), ensure_ascii=False).encode()
    )

    assert encode(tensor, max_json=n_bytes)
    with pytest.raises(Refused, match=r"output 'a' makes the answer larger than the .* ask for it as binary data"):
        encode(tensor, max_json=n_bytes - 1)
    assert encode(tensor, is_binary=lambda name: True, max_json=0)[1] == [tensor.raw]


def test_all_outputs_together_are_within_the_limit():
    with pytest.raises(Refused, match="output 'b'"):
        encode(ZEROS, Tensor("b", "UINT8", [100], raw=bytes(100)), max_json=250)


@pytest.mark.parametrize("datatype", ["UINT8", "BYTES"])
def test_an_answer_that_is_far_too_large_for_json_is_not_even_begun(datatype, monkeypatch):
    tensor = Tensor("a", datatype, [1], data=["x" * 2_000_000]) if datatype == "BYTES" else DIGITS
    monkeypatch.setattr("corosrv.dialects.kserve.infer_answer._parts", pytest.fail)

    with pytest.raises(Refused, match="output 'a'"):
        encode(tensor, max_json=30_000)


def test_large_finite_numbers_are_no_infinite_sum():
    assert encode(Tensor("a", "FP64", [2], data=[1.7e308, 1.7e308]))[0]["outputs"][0]["data"] == [1.7e308, 1.7e308]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_binary_outputs_are_in_the_tail_in_their_order(datatype):
    tensors = [Tensor(name, datatype, [2], data=[ORDINARY[datatype]] * 2) for name in "abc"]

    head, tail = encode(*tensors, is_binary=lambda name: name != "b" or datatype in ("FP16", "BF16"))

    assert b"".join(tail) == b"".join(
        bytes(tensor.raw) for tensor in tensors if tensor.name != "b" or datatype in ("FP16", "BF16")
    )
    first = head["outputs"][0]
    assert first == {
        "name": "a", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": tensors[0].n_bytes}
    }  # fmt: skip


def test_parameters_of_answers_and_outputs_are_told():
    tensor = Tensor("a", "INT8", [1], data=[1], parameters={"unit": "mm"})

    encoded = encode_answer(HandlerCard("m", "3"), "7", InferOutputs((tensor,), {"n": 1}), lambda name: True, 0)

    assert json.loads(encoded.pieces[0]) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "parameters": {"n": 1},
        "outputs": [
            {"name": "a", "datatype": "INT8", "shape": [1], "parameters": {"unit": "mm", "binary_data_size": 1}}
        ],
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("is_of_output", [False, True])
def test_a_parameter_that_json_cannot_hold_is_the_handlers_failure(value: float, is_of_output: bool):
    own = {"ratio": value}
    tensor = Tensor("a", "INT8", [1], data=[1], parameters=own if is_of_output else {})

    with pytest.raises(HandlerFailed, match="the parameter 'ratio' of the answer"):
        encode_answer(
            HandlerCard("m"), None, InferOutputs((tensor,), {} if is_of_output else own), lambda name: True, 0
        )


# Over the endpoint.

A = Tensor("a", "FP32", [2], data=[1.5, 2.5])
B = Tensor("b", "BYTES", [1], data=["é"])


@pytest.mark.parametrize(
    ("members", "binary"),
    [
        ({}, []),
        ({"parameters": {"binary_data_output": True}}, ["a", "b"]),
        ({"parameters": {"binary_data_output": False}}, []),
        ({"outputs": [{"name": "b"}, {"name": "a"}]}, []),
        ({"outputs": [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}]}, ["b"]),
        (
            {
                "outputs": [{"name": "b", "parameters": {"binary_data": False}}, {"name": "a"}],
                "parameters": {"binary_data_output": True},
            },
            ["a"],
        ),
    ],
)
def test_an_output_is_binary_if_it_or_else_the_request_says_so(client: FlaskClient, members: dict, binary: list[str]):
    answer = client.post(ECHO, json={"inputs": [json_input(A), json_input(B)], **members})

    length = int(answer.headers.get(LENGTH, len(answer.data)))
    assert answer.headers["Content-Type"] == ("application/octet-stream" if binary else "application/json")
    assert answer.data[length:] == b"".join(bytes({"a": A, "b": B}[name].raw) for name in binary)
    outputs = json.loads(answer.data[:length])["outputs"]
    assert [output["name"] for output in outputs if "data" not in output] == binary


def test_binary_comes_back_as_it_went_in(client: FlaskClient):
    tensor = Tensor("a", "BF16", [300, 300], data=[1.5] * 90_000)
    body, headers = binary_body([tensor, B], parameters={"binary_data_output": True})

    answer = client.post(ECHO, data=body, headers=headers)

    length = int(answer.headers[LENGTH])
    assert answer.data[length:] == bytes(tensor.raw) + bytes(B.raw)
    assert int(answer.headers["Content-Length"]) == len(answer.data)


COMPRESS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "x-gzip": lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
}


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("n", [2, 100_000])
def test_compressed_bodies_are_taken_and_their_header_counts_inflated_bytes(client: FlaskClient, encoding: str, n: int):
    tensor = Tensor("a", "INT8", [n], data=[7] * n)
    body, headers = binary_body([tensor])

    answer = client.post(ECHO, data=COMPRESS[encoding](body), headers={**headers, "Content-Encoding": encoding})

    assert answer.json["outputs"][0]["data"] == [7] * n


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: b'{"inputs": []}',
        lambda data: data[:-6] + bytes(6),
    ],
)
def test_data_that_are_not_of_their_encoding_are_refused(client: FlaskClient, encoding: str, damage: Callable):
    data = damage(COMPRESS[encoding](b'{"inputs": []}'))

    answer = client.post(ECHO, data=data, headers={"Content-Encoding": encoding})

    assert (answer.status_code, list(answer.json)) == (400, ["error"])
    assert "Connection" not in answer.headers


def test_deflate_without_its_wrapping_is_refused(client: FlaskClient):
    compressor = zlib.compressobj(wbits=-15)
    data = compressor.compress(b'{"inputs": []}') + compressor.flush()

    assert client.post(ECHO, data=data, headers={"Content-Encoding": "deflate"}).status_code == 400


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "nonsense"])
def test_other_encodings_are_refused(client: FlaskClient, encoding: str):
    answer = client.post(ECHO, data=b"{}", headers={"Content-Encoding": encoding})

    assert (answer.status_code, list(answer.json)) == (415, ["error"])


def test_a_small_bomb_stays_small(client: FlaskClient):
    import tracemalloc

    bomb = gzip.compress(bytes(200 * MAX_BODY))
    tracemalloc.start()
    try:
        answer = client.post(ECHO, data=bomb, headers={"Content-Encoding": "gzip"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert answer.status_code == 413
    assert peak < 3 * MAX_BODY


@pytest.mark.parametrize(
    ("accepts", "encoding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("br", None),
        ("*", None),
        ("gzip;q=0", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("GZIP; q=1", "gzip"),
        ("gzip;q=x", None),
    ],
)
def test_answers_are_compressed_only_if_that_is_asked_for(
    client: FlaskClient, accepts: str | None, encoding: str | None
):
    body, headers = binary_body([A], parameters={"binary_data_output": True})
    if accepts is not None:
        headers["Accept-Encoding"] = accepts

    answer = client.post(ECHO, data=body, headers=headers)

    assert answer.headers.get("Content-Encoding") == encoding
    data = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding](answer.data)
    assert data[int(answer.headers[LENGTH]) :] == A.raw
