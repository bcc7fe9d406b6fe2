"""Defines the declarations of a model's inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors.datatypes import DATATYPES


class TensorSpec(msgspec.Struct, frozen=True):
    """Declares an input or an output. A dimension of -1 may have any size.

    `any_rank`: it may have other dimensions than `shape`, which is what a list of elements becomes then.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    optional: bool = False
    any_rank: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown datatype, an empty name or a dimension below -1."""
        if not self.name:
            raise ValueError("a declared tensor needs a name")
        if self.datatype not in DATATYPES:
            raise ValueError(f"tensor {self.name!r}: unknown datatype {self.datatype!r}")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < -1 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: dimensions are integers from -1 on, not {list(self.shape)}")

    def allows(self, shape: Sequence[int]) -> bool:
        """Returns whether a tensor of this shape fits the declaration."""
        return self.any_rank or (
            len(shape) == len(self.shape)
            and all(declared in (-1, size) for declared, size in zip(self.shape, shape, strict=True))
        )

    def shape_for(self, n_elements: int) -> tuple[int, ...]:
        """Returns the shape of so many elements, the one dimension of -1 inferred. Raises InvalidTensor if none fits.

        Where several are -1, all but the last are taken as 1.
        """
        fixed = [1 if size == -1 else size for size in self.shape]
        n_fixed = math.prod(fixed)
        if -1 in self.shape and n_fixed and n_elements % n_fixed == 0:
            last = len(fixed) - 1 - list(self.shape)[::-1].index(-1)
            fixed[last] = n_elements // n_fixed
        elif n_fixed != n_elements:
            raise InvalidTensor(self.name, f"has {n_elements} elements, which do not fit the shape {list(self.shape)}")
        return tuple(fixed)
