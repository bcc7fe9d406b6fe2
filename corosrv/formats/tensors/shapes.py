"""Checks the shapes of tensors, and counts their elements."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from corosrv.base.errors import InvalidTensor

MAX_DIMENSIONS = 64
MAX_SIZE = 2**63 - 1  # of a dimension, and of a product of dimensions: gRPC's integers hold no more


def sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the dimensions of a shape. Raises InvalidTensor for one that is no integer from 0 on, or for too many."""
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidTensor(name, f"has {len(shape)} dimensions, where {MAX_DIMENSIONS} are allowed")
    return tuple([_size(name, size) for size in shape])


def _size(name: str, size: object) -> int:
    if type(size) is int or (not isinstance(size, bool) and hasattr(size, "__index__")):
        number = operator.index(size)  # as numpy's integers, which authors get from shapes
        if 0 <= number <= MAX_SIZE:
            return number
    raise InvalidTensor(name, f"has the dimension {str(size)[:40]}, which is no size")


def count(name: str, shape: tuple[int, ...]) -> int:
    """Returns the number of elements. Raises InvalidTensor for one that no memory holds. Allocates nothing."""
    if 0 in shape:
        return 0
    n_elements = 1
    for size in shape:
        n_elements *= size
        if n_elements > MAX_SIZE:
            raise InvalidTensor(name, f"has the shape {list(shape)}, which no memory holds")
    return n_elements
