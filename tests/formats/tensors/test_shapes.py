"""Shapes: which are taken, and that none makes anything large."""

import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import elements


@pytest.mark.parametrize(
    ("shape", "n_elements"),
    [
        ([], 1),
        ([0], 0),
        ([3], 3),
        ([2, 3, 4], 24),
        ([2**62, 0, 2**62], 0),
        ([2**63 - 1], 2**63 - 1),
        ([1] * 64, 1),
    ],
)
def test_elements_are_counted(shape, n_elements):
    assert elements.count("a", elements.sizes("a", shape)) == n_elements


@pytest.mark.parametrize("size", [-1, True, False, 1.0, "1", None, [1], 2**63, 10**30])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InvalidTensor, match="which is no size"):
        elements.sizes("a", [1, size])


@pytest.mark.parametrize("shape", [[2**32, 2**32], [2**62, 2], [2**63 - 1] * 64])
def test_a_product_that_overflows_is_refused(shape):
    with pytest.raises(InvalidTensor, match="no memory holds"):
        elements.count("a", elements.sizes("a", shape))


def test_too_many_dimensions_are_refused():
    with pytest.raises(InvalidTensor, match="65 dimensions"):
        elements.sizes("a", [1] * 65)


def test_integers_of_numpy_are_sizes():
    numpy = pytest.importorskip("numpy")

    (size,) = elements.sizes("a", [numpy.int32(3)])

    assert type(size) is int
