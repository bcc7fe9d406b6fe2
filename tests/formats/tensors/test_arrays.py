"""Tensors from and to arrays of numpy."""

import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import DATATYPES, Tensor
from tests.formats.tensors.values import ORDINARY

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_an_array_becomes_the_same_tensor_again(datatype):
    tensor = Tensor("a", datatype, [2, 1, 2], data=[ORDINARY[datatype]] * 4)

    array = tensor.as_numpy()

    assert array.shape == (2, 1, 2)
    assert Tensor("a", datatype, [2, 1, 2], data=array) == tensor


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL"])
def test_an_array_shares_the_memory_of_its_tensor(datatype):
    tensor = Tensor("a", datatype, [4], data=[ORDINARY[datatype]] * 4)

    array = tensor.as_numpy()
    again = Tensor("a", datatype, [4], data=array)

    assert numpy.shares_memory(array, numpy.frombuffer(tensor.raw, dtype="u1"))
    assert numpy.shares_memory(array, numpy.frombuffer(again.raw, dtype="u1"))


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("shape", [[0], [3, 0]])
def test_empty_arrays_have_their_shape(datatype, shape):
    array = Tensor("a", datatype, shape, data=[]).as_numpy()

    assert array.shape == tuple(shape)
    assert Tensor("a", datatype, shape, data=array).n_bytes == 0


def test_a_scalar_is_an_array_without_dimensions():
    assert Tensor("a", "FP32", [], data=[1.5]).as_numpy() == 1.5


def test_arrays_in_another_order_are_taken_row_by_row():
    array = numpy.asfortranarray(numpy.arange(6, dtype=">i4").reshape(2, 3))

    assert Tensor("a", "INT32", [2, 3], data=array).data == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("datatype", "array", "elements"),
    [
        ("INT32", numpy.array([1, -5]), [1, -5]),
        ("UINT8", numpy.array([0, 255], dtype="i8"), [0, 255]),
        ("FP32", numpy.array([0.5, float("inf")]), [0.5, float("inf")]),
        ("FP32", numpy.array([1, 2]), [1.0, 2.0]),
        ("FP16", numpy.array([1 + 2**-11, 65504.0]), [1.0, 65504.0]),
        ("BF16", numpy.array([1.5, 2.0], dtype="f4"), [1.5, 2.0]),
        ("BYTES", numpy.array(["a", "bc"]), [b"a", b"bc"]),
        ("BYTES", numpy.array([b"a", "b"], dtype=object), [b"a", b"b"]),
    ],
)
def test_elements_are_converted_where_nothing_is_lost_but_digits(datatype, array, elements):
    assert Tensor("a", datatype, [2], data=array).data == elements


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("INT8", numpy.array([128])),
        ("INT8", numpy.array([-129])),
        ("UINT64", numpy.array([-1])),
        ("INT64", numpy.array([2**63], dtype="u8")),
        ("INT32", numpy.array([1.0])),
        ("INT32", numpy.array([True])),
        ("FP32", numpy.array([True])),
        ("BOOL", numpy.array([1])),
        ("FP32", numpy.array([1e39])),
        ("FP16", numpy.array([1e5], dtype="f4")),
        ("FP32", numpy.array([1j])),
        ("INT32", numpy.array([None])),
        ("BYTES", numpy.array([1])),
        ("INT32", numpy.array(["1"])),
    ],
)
def test_elements_that_do_not_fit_are_refused(datatype, array):
    with pytest.raises(InvalidTensor):  # and without a warning, which is an error here
        Tensor("a", datatype, [1], data=array)


def test_an_array_of_another_size_is_refused():
    with pytest.raises(InvalidTensor, match="has 3 elements"):
        Tensor("a", "FP32", [2], data=numpy.zeros(3, dtype="f4"))
