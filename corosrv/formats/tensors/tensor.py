"""A tensor as handlers and protocols pass it on: raw little-endian bytes; other forms are made on demand.

A model declares its inputs and outputs by `TensorSpec`, against which `check_inputs` checks a request. Tensors become
arrays of numpy, and are made of them, where an author's code uses it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import elements
from corosrv.formats.tensors.elements import DATATYPES, Datatype


def is_array(value: object) -> bool:
    """Returns whether a value is an array of numpy. Does not import it: without it, there is none."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def as_array(datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> Any:
    """Returns an array of this shape; see Tensor.as_numpy. Raises ImportError."""
    import numpy  # only where a handler asks for it

    if datatype == "BYTES":
        objects = numpy.empty(math.prod(shape), dtype=object)
        objects[:] = elements.unpack_bytes(raw)
        return objects.reshape(shape)
    if datatype == "BF16":
        return numpy.frombuffer(elements.widen(raw), dtype="<f4").reshape(shape)
    return numpy.frombuffer(raw, dtype=_dtype(DATATYPES[datatype])).reshape(shape)


def pack(name: str, datatype: str, array: Any) -> bytes | memoryview:
    """Returns the raw form of an array in row-major order: a view of its memory where it has that form already.

    Elements are checked and rounded as those of a list are; raises InvalidTensor as for them.
    """
    import numpy

    kind = DATATYPES[datatype]
    if array.dtype.name == "bfloat16" and datatype == "BF16":
        return _bytes_of(numpy.ascontiguousarray(array).view("<u2"))
    if datatype in ("BYTES", "BF16") or array.dtype.kind not in "biuf":
        return elements.pack(name, datatype, array.ravel().tolist())
    if array.dtype != _dtype(kind):
        _check_conversion(name, kind, array)
    with numpy.errstate(over="ignore"):  # it was checked
        return _bytes_of(numpy.ascontiguousarray(array, dtype=_dtype(kind)))


def _check_conversion(name: str, kind: Datatype, array: Any) -> None:
    """Raises InvalidTensor where the elements would not be those of a list that is let pass."""
    import numpy

    if (array.dtype.kind == "b") != (kind.name == "BOOL") or (array.dtype.kind == "f" and kind.is_integer):
        raise InvalidTensor(name, f"has elements of {array.dtype.name}, which are no {kind.name}")
    if kind.is_integer and array.size and not kind.least <= int(array.min()) <= int(array.max()) <= kind.most:
        raise InvalidTensor(name, f"has an element that is out of the range of {kind.name}")
    if not kind.is_integer:
        with numpy.errstate(over="ignore"):
            stored = array.astype(_dtype(kind))
        if (numpy.isinf(stored) & ~numpy.isinf(array)).any():
            raise InvalidTensor(name, f"has an element that is too large for {kind.name}")


def _dtype(kind: Datatype) -> str:
    return "?" if kind.name == "BOOL" else f"<{kind.format}"


def _bytes_of(array: Any) -> bytes | memoryview:
    return memoryview(array).cast("B") if array.size else b""


Parameter = str | int | float | bool


class Tensor:
    """One named tensor. `raw` is its content: little-endian, row-major, without padding.

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
        elif is_array(data):
            self._check_count(data.size)  # type: ignore[union-attr]
            self.raw = pack(name, datatype, data)
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
        self.shape = elements.sizes(name, shape)
        self.n_elements = elements.count(name, self.shape)
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
        return as_array(self.datatype, self.shape, self.raw)

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


def check_inputs(specs: Sequence[TensorSpec], inputs: Iterable[Tensor]) -> None:
    """Raises InvalidTensor for a repeated, undeclared or missing input, and for a wrong datatype, rank or dimension.

    Without declarations any inputs are taken, but none twice.
    """
    by_name: dict[str, Tensor] = {}
    for tensor in inputs:
        if tensor.name in by_name:
            raise InvalidTensor(tensor.name, "is there twice")
        by_name[tensor.name] = tensor
    if not specs:
        return
    for spec in specs:
        if (tensor_of_spec := by_name.pop(spec.name, None)) is not None:
            _check(spec, tensor_of_spec)
        elif not spec.optional:
            raise InvalidTensor(spec.name, "is missing")
    for name in by_name:
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InvalidTensor(name, f"is no input of this model, which takes {names}")


def _check(spec: TensorSpec, tensor: Tensor) -> None:
    if tensor.datatype != spec.datatype:
        raise InvalidTensor(spec.name, f"has the datatype {tensor.datatype}, where the model takes {spec.datatype}")
    if not spec.allows(tensor.shape):
        raise InvalidTensor(spec.name, f"has the shape {list(tensor.shape)}, where the model takes {list(spec.shape)}")
