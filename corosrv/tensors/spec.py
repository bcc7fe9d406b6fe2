"""Declarations of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corosrv.tensors.datatypes import DATATYPES


class TensorSpec(msgspec.Struct, frozen=True):
    """Declares an input or an output. A dimension of -1 may have any size."""

    name: str
    datatype: str
    shape: Sequence[int]
    optional: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown datatype, an empty name or a dimension below -1."""
        if not self.name:
            raise ValueError("a declared tensor needs a name")
        if self.datatype not in DATATYPES:
            raise ValueError(f"tensor {self.name!r}: unknown datatype {self.datatype!r}")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < -1 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: dimensions are integers from -1 on, not {list(self.shape)}")
