"""Elements of tensors: from Python values to raw bytes and back, with all checks."""

from __future__ import annotations

import array
import math
import struct
import sys
from collections.abc import Sequence
from typing import Any

from corosrv.errors import InvalidTensor
from corosrv.tensors.datatypes import DATATYPES, Datatype

_LENGTH = struct.Struct("<I")


def check(name: str, datatype: str, n_elements: int, raw: bytes | memoryview) -> None:
    """Raises InvalidTensor unless `raw` holds exactly `n_elements` well-formed elements."""
    kind = DATATYPES[datatype]
    if kind.size:
        if len(raw) != n_elements * kind.size:
            raise InvalidTensor(name, f"has {len(raw)} bytes, where its shape needs {n_elements * kind.size}")
        if datatype == "BOOL" and bytes(raw).strip(b"\x00\x01"):
            raise InvalidTensor(name, "has a BOOL element that is neither 0 nor 1")
    elif (n_found := sum(1 for _ in _bytes_elements(name, raw))) != n_elements:
        raise InvalidTensor(name, f"has {n_found} elements, where its shape needs {n_elements}")


def pack(name: str, datatype: str, data: Sequence[Any]) -> bytes:
    """Returns the raw form of a flat list. Raises InvalidTensor for an element of a wrong type or out of range."""
    kind = DATATYPES[datatype]
    if datatype == "BYTES":
        return b"".join(map(_with_length, (_as_bytes(name, element) for element in data)))
    if datatype == "BOOL":
        _check_each(name, kind, data, lambda element: isinstance(element, bool))
        return bytes(data)
    if kind.is_integer:
        _check_each(name, kind, data, lambda element: type(element) is int and kind.least <= element <= kind.most)
        return _little_endian(array.array(kind.format, data))
    _check_each(name, kind, data, lambda element: type(element) in (int, float))
    return _floats(name, kind, data)


def unpack(name: str, datatype: str, raw: bytes | memoryview) -> list[Any]:
    """Returns the elements as a flat list."""
    kind = DATATYPES[datatype]
    if datatype == "BYTES":
        return list(_bytes_elements(name, raw))
    if datatype == "BOOL":
        return list(map(bool, raw))
    if datatype == "BF16":
        return [struct.unpack("<f", b"\0\0" + bytes(raw[at : at + 2]))[0] for at in range(0, len(raw), 2)]
    return list(struct.unpack(f"<{len(raw) // kind.size}{kind.format}", raw))


def as_numpy(datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> Any:
    """Returns an array of this shape; see Tensor.as_numpy."""
    import numpy  # only where a handler asks for it

    if datatype == "BYTES":
        array_of_objects = numpy.empty(math.prod(shape), dtype=object)
        array_of_objects[:] = list(_bytes_elements("", raw))
        return array_of_objects.reshape(shape)
    if datatype == "BF16":
        halves = numpy.frombuffer(raw, dtype="<u2").astype("<u4") << 16
        return halves.view("<f4").reshape(shape)
    return numpy.frombuffer(raw, dtype="?" if datatype == "BOOL" else f"<{DATATYPES[datatype].format}").reshape(shape)


def _bytes_elements(name: str, raw: bytes | memoryview) -> Any:
    """Yields the elements of BYTES. Raises InvalidTensor for one that ends behind the content."""
    at = 0
    view = memoryview(raw)
    while at < len(view):
        if at + _LENGTH.size > len(view):
            raise InvalidTensor(name, "ends within the length of a BYTES element")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size + length
        if at > len(view):
            raise InvalidTensor(name, "has a BYTES element that ends behind its content")
        yield bytes(view[at - length : at])


def _with_length(element: bytes) -> bytes:
    return _LENGTH.pack(len(element)) + element


def _as_bytes(name: str, element: Any) -> bytes:
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidTensor(name, f"has the BYTES element {element!r:.80}, which is no string")


def _check_each(name: str, kind: Datatype, data: Sequence[Any], is_good: Any) -> None:
    for element in data:
        if not is_good(element):
            raise InvalidTensor(name, f"has the element {element!r:.80}, which is no {kind.name}")


def _little_endian(values: array.array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _floats(name: str, kind: Datatype, data: Sequence[Any]) -> bytes:
    try:
        if kind.name == "BF16":
            return b"".join(_bf16(float(element)) for element in data)
        return struct.pack(f"<{len(data)}{kind.format}", *data)
    except (OverflowError, struct.error):
        raise InvalidTensor(name, f"has an element that is too large for {kind.name}") from None


def _bf16(number: float) -> bytes:
    """Rounds to the nearest BF16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    if number == number:
        bits += 0x7FFF + ((bits >> 16) & 1)
    return struct.pack("<H", (bits >> 16) & 0xFFFF)
