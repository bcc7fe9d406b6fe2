"""A tensor as handlers and protocols pass it on: raw little-endian bytes, which other forms are made from on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corosrv.errors import InvalidTensor
from corosrv.tensors import elements
from corosrv.tensors.datatypes import DATATYPES

Parameter = str | int | float | bool

MAX_DIMENSIONS = 64
MAX_BYTES = 2**63 - 1  # of one tensor, so that no product of dimensions goes beyond a machine's integers


class Tensor:
    """One named tensor. `raw` is its content: little-endian, row-major, without padding.

    Each element of BYTES is a little-endian length of four bytes, and as many bytes. `raw` may be a view of memory that
    belongs to somebody else; whoever keeps the tensor keeps that memory.
    """

    __slots__ = ("_data", "datatype", "name", "parameters", "raw", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: Sequence[int],
        data: Sequence[Any] | None = None,
        raw: bytes | memoryview | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Takes either flat `data` or `raw`. Raises InvalidTensor for a wrong datatype, shape, range or count."""
        if datatype not in DATATYPES:
            raise InvalidTensor(name, f"unknown datatype {datatype!r}")
        if (data is None) == (raw is None):
            raise InvalidTensor(name, "needs either data or raw content, and not both")
        self.name = name
        self.datatype = datatype
        self.shape = tuple(shape)
        self.parameters: Mapping[str, Parameter] = parameters or {}
        self._data: list[Any] | None = None
        n_elements = count(name, self.shape)
        if raw is not None:
            elements.check(name, datatype, n_elements, raw)
            self.raw: bytes | memoryview = raw
        else:
            assert data is not None
            if len(data) != n_elements:
                raise InvalidTensor(name, f"has {len(data)} elements, where the shape {list(shape)} needs {n_elements}")
            self.raw = elements.pack(name, datatype, data)

    @property
    def n_elements(self) -> int:
        return count(self.name, self.shape)

    @property
    def n_bytes(self) -> int:
        return len(self.raw)

    @property
    def data(self) -> list[Any]:
        """The elements as a flat list, made at the first use; those of BYTES are `bytes`."""
        if self._data is None:
            self._data = elements.unpack(self.name, self.datatype, self.raw)
        return self._data

    def as_numpy(self) -> Any:
        """Returns an array that shares the memory of `raw`; one of objects for BYTES. Raises ImportError without numpy.

        BF16, which numpy lacks, becomes FP32.
        """
        return elements.as_numpy(self.datatype, self.shape, self.raw)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype!r}, {list(self.shape)})"


def count(name: str, shape: Sequence[int]) -> int:
    """Returns the number of elements of a shape. Raises InvalidTensor for a dimension that is no size, or too many."""
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidTensor(name, f"has {len(shape)} dimensions, where {MAX_DIMENSIONS} are allowed")
    n_elements = 1
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidTensor(name, f"has the dimension {size!r}, which is no size")
        n_elements *= size
        if n_elements > MAX_BYTES and 0 not in shape:
            raise InvalidTensor(name, f"has the shape {list(shape)}, which no memory holds")
    return n_elements
