"""Tensors in the binary tail of a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import Refused
from corosrv.dialects.kserve.infer_request import INFER_DECODER, decode_request
from corosrv.formats.tensors import DATATYPES, Tensor
from tests.dialects.kserve.bodies import binary_body, json_input
from tests.formats.tensors.values import ORDINARY, elements_of

LENGTH = "Inference-Header-Content-Length"
A = Tensor("a", "INT32", [2], data=[1, 2])
B = Tensor("b", "BYTES", [2], data=["x", b"\xff"])


def decode(body: bytes, headers: dict[str, str]):
    return decode_request(body, headers.get(LENGTH), INFER_DECODER)


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
def test_tensors_of_every_datatype_come_out_as_they_went_in(datatype, data):
    elements = data.draw(st.lists(elements_of(DATATYPES[datatype]), max_size=8))
    tensors = (Tensor("first", datatype, [len(elements)], data=elements), A, Tensor("last", datatype, [0], data=[]))

    assert decode(*binary_body(tensors)).request.inputs == tensors


def test_binary_tensors_are_not_copied():
    body, headers = binary_body([A, B])

    first, second = decode(body, headers).request.inputs

    assert first.raw.obj is body
    assert second.raw.obj is body


def test_json_and_binary_inputs_may_be_mixed():
    body, headers = binary_body([A])
    members = json.loads(body[: int(headers[LENGTH])])
    members["inputs"].insert(0, json_input(Tensor("c", "FP32", [1], data=[1.5])))
    text = json.dumps(members).encode()

    first, second = decode_request(text + bytes(A.raw), str(len(text)), INFER_DECODER).request.inputs

    assert (first.data, second) == ([1.5], A)


def test_the_size_does_not_reach_the_handler():
    assert decode(*binary_body([A])).request.inputs[0].parameters == {}


def test_a_header_without_a_tail_is_taken():
    assert decode_request(b'{"inputs": []}', "14", INFER_DECODER).request.inputs == ()


@pytest.mark.parametrize(
    "length", ["-1", "+5", "1e1", "5.0", "", "x", "0x5", "99999", "9" * 30, "\N{FULLWIDTH DIGIT FIVE}"]
)
def test_a_header_that_is_no_length_within_the_body_is_refused(length):
    body, _ = binary_body([A])

    with pytest.raises(Refused, match=LENGTH):
        decode_request(body, length, INFER_DECODER)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (-8, "no integer from 0 on"),
        (8.0, "no integer from 0 on"),
        (True, "no integer from 0 on"),
        ("8", "no integer from 0 on"),
        (9, "where 8 bytes are left"),
        (2**62, "where 8 bytes are left"),
        (4, "has 4 bytes, where its shape needs 8"),
        (0, "has 0 bytes, where its shape needs 8"),
    ],
)
def test_a_size_that_lies_is_refused(size, problem):
    inputs = [{"name": "a", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": size}}]
    text = json.dumps({"inputs": inputs}).encode()

    with pytest.raises(Refused, match=f"tensor 'a' .*{problem}"):
        decode_request(text + bytes(8), str(len(text)), INFER_DECODER)


def test_bytes_that_no_tensor_takes_are_refused():
    body, headers = binary_body([A])

    with pytest.raises(Refused, match="3 bytes behind its last tensor"):
        decode(body + b"xyz", headers)


def test_data_and_binary_data_together_are_refused():
    inputs = [{**json_input(A), "parameters": {"binary_data_size": 8}}]
    text = json.dumps({"inputs": inputs}).encode()

    with pytest.raises(Refused, match="both data and binary_data_size"):
        decode_request(text + bytes(8), str(len(text)), INFER_DECODER)


def test_a_size_without_the_header_is_refused():
    text = binary_body([Tensor("a", "INT32", [0], data=[])])[0]

    with pytest.raises(Refused, match=f"no header {LENGTH}"):
        decode_request(text, None, INFER_DECODER)


@pytest.mark.parametrize("raw", [b"\x05\x00\x00\x00abc", b"\x01\x00\x00", b"\xff\xff\xff\xffabc"])
def test_a_malformed_bytes_element_is_refused(raw):
    with pytest.raises(Refused, match="tensor 'a'"):
        decode(*binary_body([Tensor.from_checked("a", "BYTES", [1], raw)]))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_truncated_tail_is_refused(datatype):
    body, headers = binary_body([Tensor("a", datatype, [3], data=[ORDINARY[datatype]] * 3)])

    with pytest.raises(Refused, match="tensor 'a'"):
        decode(body[:-1], headers)
