"""Tensors: their checks, and the forms of their content."""

import sys
import tracemalloc
from array import array

import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import DATATYPES, Tensor
from tests.formats.tensors.values import ORDINARY


@pytest.mark.parametrize("datatype", DATATYPES)
def test_data_and_raw_content_make_the_same_tensor(datatype):
    by_data = Tensor("a", datatype, [2], data=[ORDINARY[datatype]] * 2)

    by_raw = Tensor("a", datatype, [2], raw=by_data.raw)

    assert by_raw == by_data
    assert by_raw.data == by_data.data == [ORDINARY[datatype]] * 2


def test_raw_content_is_not_copied():
    content = bytearray(4)
    tensor = Tensor("a", "INT8", [4], raw=memoryview(content))

    content[0] = 5

    assert tensor.data == [5, 0, 0, 0]


def test_a_buffer_of_wider_items_is_taken_as_bytes():
    assert Tensor("a", "INT32", [2], raw=memoryview(array("i", [1, 2]))).data == [1, 2]


@pytest.mark.parametrize("raw", [memoryview(bytes(8))[::2], "text", 5])
def test_content_that_is_no_row_of_bytes_is_refused(raw):
    with pytest.raises(InvalidTensor, match="contiguous bytes"):
        Tensor("a", "INT8", [4], raw=raw)


@pytest.mark.parametrize("arguments", [{}, {"data": [1], "raw": b"\x01"}])
def test_content_is_given_once(arguments):
    with pytest.raises(InvalidTensor, match="either data or raw"):
        Tensor("a", "INT8", [1], **arguments)


@pytest.mark.parametrize("datatype", ["INT128", "int8", "", "FP8", "x" * 1000])
def test_an_unknown_datatype_is_refused(datatype):
    with pytest.raises(InvalidTensor, match="unknown datatype") as caught:
        Tensor("a", datatype, [1], data=[1])

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("data", ["ab", b"ab", {1, 2}, {"a": 1, "b": 2}, iter([1, 2]), 5])
def test_data_that_is_no_list_is_refused(data):
    with pytest.raises(InvalidTensor, match="needs a flat list"):
        Tensor("a", "UINT8", [2], data=data)


def test_an_empty_name_is_refused():
    with pytest.raises(InvalidTensor, match="tensor '' has an empty name"):
        Tensor("", "INT8", [1], data=[1])
    with pytest.raises(InvalidTensor, match="tensor '' has an empty name"):
        Tensor.from_checked("", "INT8", [1], b"\1")


def test_a_wrong_count_is_refused():
    with pytest.raises(InvalidTensor, match=r"has 3 elements, where the shape \[2, 2\] needs 4"):
        Tensor("a", "INT8", [2, 2], data=[1, 2, 3])


@pytest.mark.parametrize("shape", [[2**40], [2**62, 2**62], [2**20] * 64, [10**30]])
@pytest.mark.parametrize("datatype", ["INT8", "BYTES", "BOOL"])
def test_a_hostile_shape_allocates_nothing(shape, datatype):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTensor):
            Tensor("a", datatype, shape, raw=bytes(8))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_a_scalar_has_one_element_and_an_empty_tensor_none():
    assert Tensor("a", "FP32", [], data=[1.0]).n_elements == 1
    assert Tensor("a", "FP32", [0, 5], data=[]).n_bytes == 0
    assert Tensor("a", "BYTES", [0], raw=memoryview(b"")).data == []


def test_the_error_names_the_tensor():
    with pytest.raises(InvalidTensor) as caught:
        Tensor("weights", "INT8", [1], data=[1000])

    assert caught.value.param == "weights"


def test_tensors_differ_in_each_of_their_parts():
    tensor = Tensor("a", "INT8", [2], data=[1, 2])

    assert tensor == Tensor("a", "INT8", [2], raw=memoryview(b"\x01\x02"))
    for other in (
        Tensor("b", "INT8", [2], data=[1, 2]),
        Tensor("a", "UINT8", [2], data=[1, 2]),
        Tensor("a", "INT8", [2, 1], data=[1, 2]),
        Tensor("a", "INT8", [2], data=[1, 3]),
        Tensor("a", "INT8", [2], data=[1, 2], parameters={"x": 1}),
        "a",
    ):
        assert tensor != other


def test_checked_content_is_not_looked_at_again():
    tensor = Tensor.from_checked("a", "BYTES", [1], b"\x01\x00\x00\x00x")

    assert tensor.data == [b"x"]


def test_tensors_need_no_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)

    assert Tensor("a", "FP32", [1], data=[1.5]).data == [1.5]
    with pytest.raises(ImportError):
        Tensor("a", "FP32", [1], data=[1.5]).as_numpy()
