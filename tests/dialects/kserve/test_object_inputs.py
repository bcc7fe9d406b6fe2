"""Inputs that refer to an object: its content stands for their data, and is checked like it."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest

from corosrv.base.errors import InvalidTensor, NotOffered, ObjectNotFound
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.dialects.kserve.infer_request import INFER_DECODER, decode_request
from corosrv.formats.tensors import Tensor

CONTENT = struct.pack("<3i", 1, 2, 3)


def find(object_id: str) -> memoryview:
    if object_id != "known":
        raise ObjectNotFound(object_id)
    return memoryview(CONTENT)


def decode(ref: object, shape: tuple[int, ...] = (3,), **members: object) -> Tensor:
    tensor = {"name": "a", "datatype": "INT32", "shape": shape, "parameters": {"object_ref": ref, "mine": 1}, **members}
    (decoded,) = decode_request(json.dumps({"inputs": [tensor]}).encode(), None, INFER_DECODER, find).request.inputs
    return decoded


@pytest.mark.parametrize(
    "ref", ["known", msgspec.json.encode(ObjRef("known", 12, "0", "application/octet-stream", 1)).decode()]
)
def test_an_input_has_the_content_of_the_object_that_it_refers_to(ref: str):
    tensor = decode(ref)

    assert tensor.data == [1, 2, 3]
    assert tensor.parameters == {"mine": 1}


def test_a_content_that_does_not_fit_the_shape_is_refused_as_sent_data_would_be():
    with pytest.raises(InvalidTensor, match="has 12 bytes, where its shape needs 16"):
        decode("known", (4,))


def test_an_object_that_is_not_there_is_named():
    with pytest.raises(ObjectNotFound, match="'gone'"):
        decode("gone")


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        (5, "has the object_ref 5, which is no text"),
        (True, "has the object_ref True, which is no text"),
        ("", "has an empty object_ref, which names no object"),
        ('{"id": 5}', "has an object_ref that is no reference: Expected `str`"),
        ("{", "has an object_ref that is no reference"),
    ],
)
def test_what_is_no_reference_is_refused_by_the_inputs_name(ref: object, words: str):
    with pytest.raises(InvalidTensor, match=f"tensor 'a' {words}"):
        decode(ref)


def test_data_beside_a_reference_is_refused():
    with pytest.raises(InvalidTensor, match="both data and object_ref"):
        decode("known", data=[1, 2, 3])


def test_a_server_without_objects_says_so():
    tensor = {"name": "a", "datatype": "INT32", "shape": [3], "parameters": {"object_ref": "known"}}

    with pytest.raises(NotOffered):
        decode_request(json.dumps({"inputs": [tensor]}).encode(), None, INFER_DECODER)
