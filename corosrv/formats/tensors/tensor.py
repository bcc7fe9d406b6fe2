"""Holds a tensor as handlers and protocols pass it on: raw little-endian bytes; other forms are made on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import arrays, elements, shapes
from corosrv.formats.tensors.datatypes import DATATYPES

Parameter = str | int | float | bool


class Tensor:
    """Is one named tensor. `raw` is its content: little-endian, row-major, without padding.

    Each element of BYTES is a little-endian length of four bytes, and as many bytes. `raw` may be a view of memory that
    belongs to somebody else; whoever keeps the tensor keeps that memory.
    """

    __slots__ = ("_data", "datatype", "n_elements", "name", "parameters", "raw", "shape")

    name: str
    datatype: str
    shape: tuple[int, ...]
    n_elements: int
    raw: bytes | memoryview
    parameters: Mapping[str, Parameter]

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: Sequence[int],
        data: Sequence[Any] | None = None,
        raw: bytes | memoryview | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Takes `raw`, or `data`: a flat list, or an array of numpy. Gives way to other greenlets in long BYTES.

        Raises InvalidTensor for an empty name, and for a wrong datatype, shape, range or count.
        """
        if (data is None) == (raw is None):
            raise InvalidTensor(name, "needs either data or raw content, and not both")
        self._describe(name, datatype, shape, parameters)
        if raw is not None:
            self.raw = raw if type(raw) is bytes else _view(name, raw)
            elements.check(name, datatype, self.n_elements, self.raw)
        elif arrays.is_array(data):
            self._check_count(data.size)  # type: ignore[union-attr]
            self.raw = arrays.pack(name, datatype, data)
        else:
            if not isinstance(data, Sequence) or isinstance(data, (str, bytes, bytearray, memoryview)):
                raise InvalidTensor(name, f"needs a flat list as its data, and no {type(data).__name__}")
            self._check_count(len(data))
            self.raw = elements.pack(name, datatype, data)

    @classmethod
    def from_checked(
        cls,
        name: str,
        datatype: str,
        shape: Sequence[int],
        raw: bytes | memoryview,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Tensor:
        """Makes a tensor of content that was packed here, or checked before. Raises InvalidTensor for a wrong shape."""
        tensor = cls.__new__(cls)
        tensor._describe(name, datatype, shape, parameters)
        tensor.raw = raw
        return tensor

    def _describe(
        self, name: str, datatype: str, shape: Sequence[int], parameters: Mapping[str, Parameter] | None
    ) -> None:
        if not name:
            raise InvalidTensor(name, "has an empty name: give it one")
        if datatype not in DATATYPES:
            raise InvalidTensor(name, f"has the unknown datatype {datatype[:40]!r}")
        self.name = name
        self.datatype = datatype
        self.shape = shapes.sizes(name, shape)
        self.n_elements = shapes.count(name, self.shape)
        self.parameters = parameters or {}
        self._data: list[Any] | None = None

    def _check_count(self, n_elements: int) -> None:
        if n_elements != self.n_elements:
            raise InvalidTensor(
                self.name, f"has {n_elements} elements, where the shape {list(self.shape)} needs {self.n_elements}"
            )

    @property
    def n_bytes(self) -> int:
        return len(self.raw)

    @property
    def data(self) -> list[Any]:
        """The elements as a flat list, made at the first use; those of BYTES are `bytes`."""
        if self._data is None:
            self._data = elements.unpack(self.datatype, self.raw)
        return self._data

    def as_numpy(self) -> Any:
        """Returns an array that shares the memory of `raw`; one of objects for BYTES. Raises ImportError without numpy.

        BF16, which numpy lacks, becomes FP32.
        """
        return arrays.as_array(self.datatype, self.shape, self.raw)

    def __eq__(self, other: object) -> bool:
        """Compares everything, contents byte by byte."""
        if not isinstance(other, Tensor):
            return NotImplemented
        return (
            (self.name, self.datatype, self.shape) == (other.name, other.datatype, other.shape)
            and self.parameters == other.parameters
            and self.raw == other.raw
        )

    __hash__ = None  # type: ignore[assignment]  # contents may be views of memory that changes

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype!r}, {list(self.shape)})"


def _view(name: str, raw: bytes | memoryview) -> bytes | memoryview:
    """Returns content as single bytes, whatever its buffer is of."""
    try:
        view = memoryview(raw)
        if view.format == "B" and view.ndim == 1 and view.contiguous:
            return view
        return view.cast("B") if view.nbytes else b""
    except TypeError:
        raise InvalidTensor(name, f"needs contiguous bytes as its raw content, and no {type(raw).__name__}") from None
