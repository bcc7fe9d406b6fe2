"""Declarations of tensors."""

import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import TensorSpec


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("", "INT8", [1]), "needs a name"),
        (("a", "INT128", [1]), "unknown datatype"),
        (("a", "INT8", [-2]), "dimensions"),
        (("a", "INT8", [True]), "dimensions"),
        (("a", "INT8", [1.0]), "dimensions"),
    ],
)
def test_a_wrong_declaration_is_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        TensorSpec(*arguments)


@pytest.mark.parametrize(
    ("declared", "shape", "allows"),
    [
        ([], [], True),
        ([2], [2], True),
        ([2], [3], False),
        ([-1], [0], True),
        ([-1, 3], [7, 3], True),
        ([-1, 3], [3, 7], False),
        ([-1], [], False),
        ([-1], [1, 1], False),
    ],
)
def test_a_shape_fits_in_rank_and_in_every_fixed_dimension(declared, shape, allows):
    assert TensorSpec("a", "INT8", declared).allows(shape) is allows


def test_any_rank_fits_where_it_is_declared():
    spec = TensorSpec("a", "INT8", [-1], any_rank=True)

    assert [spec.allows(shape) for shape in ([], [2], [2, 3])] == [True, True, True]
    assert spec.shape_for(4) == (4,)


@pytest.mark.parametrize(
    ("declared", "n_elements", "shape"),
    [
        ([], 1, ()),
        ([4], 4, (4,)),
        ([-1], 0, (0,)),
        ([-1], 5, (5,)),
        ([2, -1], 6, (2, 3)),
        ([-1, -1], 6, (1, 6)),
        ([-1, 2, -1], 6, (1, 2, 3)),
    ],
)
def test_one_dimension_is_inferred(declared, n_elements, shape):
    assert TensorSpec("a", "INT8", declared).shape_for(n_elements) == shape


@pytest.mark.parametrize(("declared", "n_elements"), [([], 2), ([4], 3), ([2, -1], 5), ([0, -1], 3)])
def test_a_count_that_fits_no_shape_is_refused(declared, n_elements):
    with pytest.raises(InvalidTensor, match="do not fit"):
        TensorSpec("a", "INT8", declared).shape_for(n_elements)
