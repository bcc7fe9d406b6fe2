"""Converts tensors to arrays of numpy and back, where an author's code uses it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

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
