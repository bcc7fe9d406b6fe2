"""Requests in JSON, from those who know the protocol and from those who do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import Refused
from corosrv.dialects.kserve.infer_request import INFER_DECODER, decode_request
from corosrv.formats.tensors import DATATYPES, Tensor
from tests.dialects.kserve.bodies import json_input, nested
from tests.formats.tensors.values import elements_of

NAMED = b'"name": "a", "datatype": "INT32", "shape": [1]'
IN_JSON = [name for name in DATATYPES if name not in ("FP16", "BF16")]


def decode(body: Any, json_length: str | None = None):
    return decode_request(body if isinstance(body, bytes) else json.dumps(body).encode(), json_length, INFER_DECODER)


def decode_input(**members: Any) -> Tensor:
    defaults = {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]}
    (tensor,) = decode({"inputs": [{**defaults, **members}]}).request.inputs
    return tensor


def json_elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if datatype.startswith("FP"):
        return st.floats(width=8 * DATATYPES[datatype].size, allow_nan=False, allow_infinity=False)
    return elements_of(DATATYPES[datatype])


@pytest.mark.parametrize("datatype", IN_JSON)
@given(data=st.data())
def test_flat_and_nested_data_are_the_same_tensor(datatype, data):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=3))
    n_elements = Tensor.from_checked("a", datatype, shape, b"").n_elements
    elements = data.draw(st.lists(json_elements(datatype), min_size=n_elements, max_size=n_elements))
    tensor = Tensor("a", datatype, shape, data=elements)

    for form in (elements, nested(elements, shape)):
        (decoded,) = decode({"inputs": [json_input(tensor, form)]}).request.inputs
        assert decoded == tensor


@pytest.mark.parametrize(
    ("datatype", "text", "element"),
    [
        ("INT64", "9223372036854775807", 2**63 - 1),
        ("INT64", "-9223372036854775808", -(2**63)),
        ("INT64", "9007199254740993", 2**53 + 1),
        ("UINT64", "18446744073709551615", 2**64 - 1),
        ("INT8", "-0", 0),
        ("FP64", "1e308", 1e308),
        ("FP64", "7", 7.0),
        ("FP32", "0.1", 0.10000000149011612),
        ("BOOL", "true", True),
        ("BYTES", '"\\u00e9\\n"', "é\n".encode()),
        ("BYTES", '""', b""),
    ],
)
def test_elements_are_exact(datatype, text, element):
    body = f'{{"inputs": [{{"name": "a", "datatype": "{datatype}", "shape": [1], "data": [{text}]}}]}}'

    (tensor,) = decode(body.encode()).request.inputs

    assert tensor.data == [element]
    assert type(tensor.data[0]) is type(element)


@pytest.mark.parametrize("datatype", IN_JSON)
@pytest.mark.parametrize("text", ["null", "{}", "[[1]]", "1e999", "NaN", "Infinity", "'1'", "01", ""])
def test_what_is_no_element_of_any_kind_is_refused(datatype, text):
    body = f'{{"inputs": [{{"name": "a", "datatype": "{datatype}", "shape": [2], "data": [{text}, {text}]}}]}}'

    with pytest.raises(Refused):
        decode(body.encode())


@pytest.mark.parametrize(
    ("datatype", "element"),
    [
        ("INT32", True),
        ("INT32", 1.0),
        ("INT32", "1"),
        ("INT32", 2**31),
        ("INT8", 128),
        ("UINT8", -1),
        ("UINT64", 2**64),
        ("BOOL", 1),
        ("BOOL", "true"),
        ("FP32", True),
        ("FP32", "1.5"),
        ("FP32", 1e39),
        ("BYTES", 1),
        ("BYTES", True),
        ("BYTES", ["a"]),
    ],
)
def test_an_element_of_a_wrong_type_or_range_is_refused_with_the_tensors_name(datatype, element):
    with pytest.raises(Refused, match="tensor 'a'"):
        decode_input(datatype=datatype, shape=[1], data=[element])


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_datatypes_without_elements_in_json_ask_for_binary_data(datatype):
    with pytest.raises(Refused, match="send it as binary data"):
        decode_input(datatype=datatype, data=[1.0, 2.0])


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2], [1]),
        ([2], [1, 2, 3]),
        ([], []),
        ([], [1, 2]),
        ([], [[]]),
        ([], [[[]]]),
        ([0], [1]),
        ([2, 2], [[1, 2], [3]]),
        ([2, 2], [[1, 2, 3], [4]]),
        ([2, 2], [[1], [2], [3], [4]]),
        ([4], [[1, 2], [3, 4]]),
        ([2, 2], [[1, 2], 3, 4]),
        ([2, 2], [1, 2, [3, 4]]),
        ([2, 2], [[[1, 2]], [[3, 4]]]),
        ([2, 2], [[[1], [2]], [[3], [4]]]),
        ([2], [[1], [2]]),
        ([2, 0], [[], [], []]),
        ([2**62], [1]),
        ([2**63], [1]),
        ([2**32, 2**32], [1]),
        ([1] * 65, [1]),
        ([-1], [1]),
    ],
)
def test_data_that_do_not_fit_the_shape_are_refused(shape, data):
    with pytest.raises(Refused, match="tensor 'a'"):
        decode_input(shape=shape, data=data)


@pytest.mark.parametrize(
    ("shape", "data"),
    [([], [5]), ([], 5), ([0], []), ([2, 0], [[], []]), ([2, 0], []), ([0, 2], []), ([1, 1], [[5]]), ([1, 1], [5])],
)
def test_scalars_and_empty_tensors_are_taken(shape, data):
    assert decode_input(shape=shape, data=data).data in ([], [5])


def test_an_input_without_a_name_is_refused():
    with pytest.raises(Refused, match="tensor '' has an empty name: give it one"):
        decode_input(name="")
    with pytest.raises(Refused, match="tensor '' has an empty name: give it one"):
        decode(b'{"inputs":[{"name":"","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}7', "91")


@pytest.mark.parametrize("data", [5, "12", {"0": 1}, True, 1.5])
def test_data_that_are_no_array_are_refused(data):
    with pytest.raises(Refused, match="tensor 'a'"):
        decode_input(data=data)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"shape": [1.0, 2]}, "inputs[0].shape[0]"),
        ({"shape": [True]}, "inputs[0].shape[0]"),
        ({"shape": 2}, "inputs[0].shape"),
        ({"name": 5}, "inputs[0].name"),
        ({"datatype": None}, "inputs[0].datatype"),
        ({"datatype": "int32"}, "a"),
        ({"parameters": {"x": None}}, "inputs[0].parameters.x"),
        ({"parameters": {"y": 1, "x": [1]}}, "inputs[0].parameters.x"),
    ],
)
def test_a_wrong_member_of_an_input_is_named(members, param):
    with pytest.raises(Refused) as caught:
        decode_input(**members)

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": [], "id": 5}, "id"),
        ({"inputs": [], "id": None}, "id"),
        ({"inputs": [], "parameters": []}, "parameters"),
        ({"inputs": [], "parameters": {"x": None}}, "parameters.x"),
        ({"inputs": [], "parameters": {"x": [1]}}, "parameters.x"),
        ({"inputs": [], "parameters": {"x": {}}}, "parameters.x"),
        ({"inputs": [], "parameters": {"a": 1, "b": True, "my own.key": {}, "c": {}}}, "parameters.my own.key"),
        ({"inputs": [], "outputs": [{"name": "a", "parameters": {"x": None}}]}, "outputs[0].parameters.x"),
        ({"inputs": [], "outputs": ["sum"]}, "outputs[0]"),
        ({"inputs": [], "outputs": [{}]}, "outputs[0].name"),
        ({"inputs": [], "outputs": [{"name": "a"}, {"name": "a"}]}, "outputs"),
        (
            {"inputs": [], "outputs": [{"name": "a", "parameters": {"binary_data": 1}}]},
            "outputs.parameters.binary_data",
        ),
        ({"inputs": [], "outputs": [{"name": "a", "parameters": {"classification": 1}}]}, "parameters.classification"),
        ({"inputs": [], "parameters": {"timeout": -1}}, "timeout"),
        ({"inputs": [], "parameters": {"timeout": 1.0}}, "timeout"),
        ({"inputs": [], "parameters": {"timeout": True}}, "timeout"),
        ({"inputs": [], "parameters": {"priority": 10}}, "priority"),
        ({"inputs": [], "parameters": {"priority": "1"}}, "priority"),
        ({"inputs": [], "parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
        ({"inputs": [], "parameters": {"x": 2**64}}, "parameters.x"),
        ({"inputs": [], "parameters": {"x": -(2**63) - 1}}, "parameters.x"),
        ({"inputs": [], "parameters": {"": None}}, "parameters."),
        ({"inputs": [], "parameters": {"x" * 200: None}}, "parameters." + "x" * 120),
        ({"inputs": [], "parameters": {"x": None}, "id": "i" * 70_000}, "parameters[...]"),
        (b'{"inputs": [], "parameters": {"x": null}, ', "parameters[...]"),
        (b'{"inputs": [], "parameters": {"x": null}, "parameters": {"x": 1}}', "parameters[...]"),
        (b'{"inputs": [{%s, "parameters": {"x": null}}], "inputs": 5}' % NAMED, "inputs[0].parameters[...]"),
        (b'{"inputs": [{%s, "parameters": {"x": null}}], "inputs": []}' % NAMED, "inputs[0].parameters[...]"),
        (b'{"inputs": [], "parameters": {"x": null}, "parameters": []}', "parameters[...]"),
        (b'{"inputs": [], "parameters": {"x": null}, "y": %s' % (b"[" * 60_000), "parameters[...]"),
        ([], None),
        (b"", None),
        (b"{", None),
        (b'{"inputs": []} x', None),
        (b"\xff", None),
        (b'{"inputs": [], "id": "\xff"}', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_wrong_body_is_refused_by_name(body, param):
    with pytest.raises(Refused) as caught:
        decode(body)

    assert caught.value.param == param


def test_unknown_members_do_not_matter():
    assert decode({"inputs": [], "model_name": "add", "more": [1, {}]}).request.inputs == ()


def test_an_input_without_content_is_refused():
    with pytest.raises(Refused, match="neither data nor binary_data_size"):
        decode({"inputs": [{"name": "a", "datatype": "INT32", "shape": [1]}]})


def test_an_inputs_parameters_are_kept():
    assert decode_input(parameters={"one": 1, "yes": True}).parameters == {"one": 1, "yes": True}


def test_a_byte_order_mark_is_no_error():
    assert decode(b"\xef\xbb\xbf" + b'{"inputs": []}').request.inputs == ()
