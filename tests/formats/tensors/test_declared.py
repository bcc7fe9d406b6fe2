"""A request's inputs against a model's declarations."""

import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import Tensor, TensorSpec, check_inputs

SPECS = [
    TensorSpec("a", "INT32", [-1, 2]),
    TensorSpec("b", "BYTES", [1]),
    TensorSpec("scale", "FP32", [1], optional=True),
]
A = Tensor("a", "INT32", [1, 2], data=[1, 2])
B = Tensor("b", "BYTES", [1], data=["x"])


@pytest.mark.parametrize("inputs", [[A, B], [B, A], [A, B, Tensor("scale", "FP32", [1], data=[2.0])]])
def test_declared_inputs_pass_in_any_order(inputs):
    check_inputs(SPECS, inputs)


@pytest.mark.parametrize(
    ("inputs", "name", "problem"),
    [
        ([A], "b", "is missing"),
        ([], "a", "is missing"),
        ([A, B, A], "a", "is there twice"),
        ([A, B, Tensor("c", "INT8", [1], data=[1])], "c", "is no input of this model, which takes 'a', 'b', 'scale'"),
        ([Tensor("a", "INT64", [1, 2], data=[1, 2]), B], "a", "the datatype INT64, where the model takes INT32"),
        ([Tensor("a", "INT32", [2], data=[1, 2]), B], "a", r"the shape \[2\], where the model takes \[-1, 2\]"),
        ([Tensor("a", "INT32", [2, 1], data=[1, 2]), B], "a", r"the shape \[2, 1\]"),
        ([A, B, Tensor("scale", "FP64", [1], data=[2.0])], "scale", "the datatype FP64"),
    ],
)
def test_a_wrong_input_is_named(inputs, name, problem):
    with pytest.raises(InvalidTensor, match=problem) as caught:
        check_inputs(SPECS, inputs)

    assert caught.value.param == name


def test_a_model_without_declarations_takes_anything_but_nothing_twice():
    check_inputs([], [A, B])
    check_inputs([], [])

    with pytest.raises(InvalidTensor, match="there twice"):
        check_inputs([], [A, A])
