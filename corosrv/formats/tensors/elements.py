"""Converts elements of tensors from Python values to raw little-endian bytes and back, with all checks.

The datatypes are those of KServe's v2 protocol (the Open Inference Protocol, "Tensor Data Types"). BF16 is the upper
half of a 32-bit float. An element of BYTES is a little-endian length of four bytes, and as many bytes. Shapes are
checked and counted without allocating anything, since clients choose them.
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import InvalidTensor
from corosrv.base.processor import Turns

_FLOAT = struct.Struct("<f")
_BITS = struct.Struct("<I")
_HALF = struct.Struct("<H")
_NAN = 0x7FC0
_INFINITE = 0x7F80


def pack_bfloat16(data: Iterable[float]) -> bytes:
    """Rounds each number to the nearest BF16, ties to even. Raises OverflowError for a finite one that is too large."""
    return b"".join([_HALF.pack(_bits(float(number))) for number in data])


def _bits(number: float) -> int:
    if math.isnan(number):
        return _NAN
    single = _FLOAT.pack(number)
    (bits,) = _BITS.unpack(single)
    upper: int = bits >> 16
    if _rounds_up(number, bits, single):
        upper += 1
    if upper & 0x7FFF == _INFINITE and not math.isinf(number):
        raise OverflowError
    return upper


def _rounds_up(number: float, bits: int, single: bytes) -> bool:
    lower = bits & 0xFFFF
    if lower != 0x8000:
        return lower > 0x8000
    # Half way as a 32-bit float, which may have been rounded itself: the number decides, and if it is there too, the
    # even neighbour is taken.
    rest = abs(number) - abs(_FLOAT.unpack(single)[0])
    return rest > 0 or (rest == 0 and bool(bits & 0x10000))


def widen(raw: bytes | memoryview) -> bytearray:
    """Returns the same numbers as little-endian 32-bit floats."""
    wide = bytearray(2 * len(raw))
    wide[2::4] = raw[0::2]
    wide[3::4] = raw[1::2]
    return wide


def unpack_bfloat16(raw: bytes | memoryview) -> list[float]:
    wide = widen(raw)
    return list(struct.unpack(f"<{len(wide) // 4}f", wide))


_LENGTH = struct.Struct("<I")
_TURN = 4096  # elements after which others may run


def check_bytes(name: str, n_elements: int, raw: bytes | memoryview) -> None:
    """Raises InvalidTensor unless `raw` holds exactly so many elements. Gives way to other greenlets."""
    if n_elements * _LENGTH.size > len(raw):
        raise InvalidTensor(name, f"has {len(raw)} bytes, too few for the {n_elements} elements of its shape")
    at, read_length, turns = 0, _LENGTH.unpack_from, Turns()
    try:
        for begin in range(0, n_elements, _TURN):
            for _ in range(min(_TURN, n_elements - begin)):
                at += 4 + read_length(raw, at)[0]
            turns.give_way()
    except struct.error:
        raise InvalidTensor(name, "ends before its last element, or within it") from None
    if at > len(raw):
        raise InvalidTensor(name, "has a BYTES element that ends behind its content")
    if at < len(raw):
        raise InvalidTensor(name, f"has {len(raw) - at} bytes behind the {n_elements} elements of its shape")


def unpack_bytes(raw: bytes | memoryview) -> list[bytes]:
    """Returns the elements of content that `check` lets pass."""
    return [element for batch in batches(raw, _TURN, len(raw)) for element in batch]


def batches(raw: bytes | memoryview, n_elements: int, n_bytes: int) -> Iterator[list[bytes]]:
    """Yields the elements of content that `check` lets pass, in lists of so many elements and bytes or little more."""
    at, size, read_length = 0, len(raw), _LENGTH.unpack_from
    while at < size:
        batch: list[bytes] = []
        limit = min(at + n_bytes, size)
        while at < limit and len(batch) < n_elements:
            begin = at + 4
            at = begin + read_length(raw, at)[0]
            batch.append(bytes(raw[begin:at]))
        yield batch


def pack_bytes(name: str, data: Iterable[object]) -> bytes:
    """Returns the raw form of strings, which become UTF-8, and of bytes. Raises InvalidTensor for anything else."""
    pieces: list[bytes] = []
    for element in data:
        content = _content(name, element)
        try:
            pieces += (_LENGTH.pack(len(content)), content)
        except struct.error:
            raise InvalidTensor(name, "has a BYTES element of more than 4 GiB") from None
    return b"".join(pieces)


def _content(name: str, element: object) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidTensor(name, "has a string with half of a surrogate pair, which is no character") from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidTensor(name, f"has a BYTES element that is a {type(element).__name__} and no string")


@dataclass(frozen=True, slots=True)
class Datatype:
    """Describes one datatype: how its elements are stored, and which numbers they may be."""

    name: str
    size: int  # bytes of an element; 0 for BYTES, whose elements have their length in front
    format: str = ""  # of the modules array and struct; empty where they have none
    least: int = 0  # of integers
    most: int = 0

    @property
    def is_integer(self) -> bool:
        return self.most > 0


def _integer(name: str, size: int, format: str) -> Datatype:
    bits = 8 * size
    if name.startswith("U"):
        return Datatype(name, size, format, 0, 2**bits - 1)
    return Datatype(name, size, format, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "?"),
        _integer("INT8", 1, "b"),
        _integer("INT16", 2, "h"),
        _integer("INT32", 4, "i"),
        _integer("INT64", 8, "q"),
        _integer("UINT8", 1, "B"),
        _integer("UINT16", 2, "H"),
        _integer("UINT32", 4, "I"),
        _integer("UINT64", 8, "Q"),
        Datatype("FP16", 2, "e"),
        Datatype("BF16", 2),
        Datatype("FP32", 4, "f"),
        Datatype("FP64", 8, "d"),
        Datatype("BYTES", 0),
    )
}


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


_PIECE = 65_536  # bytes that are looked at together


def check(name: str, datatype: str, n_elements: int, raw: bytes | memoryview) -> None:
    """Raises InvalidTensor unless `raw` holds exactly `n_elements` well-formed elements. Gives way in long BYTES."""
    size = DATATYPES[datatype].size
    if not size:
        check_bytes(name, n_elements, raw)
    elif len(raw) != n_elements * size:
        raise InvalidTensor(name, f"has {len(raw)} bytes, where its shape needs {n_elements * size}")
    elif datatype == "BOOL" and not _are_bools(raw):
        raise InvalidTensor(name, "has a BOOL element that is neither 0 nor 1")


def _are_bools(raw: bytes | memoryview) -> bool:
    pieces = (bytes(raw[begin : begin + _PIECE]) for begin in range(0, len(raw), _PIECE))
    return not any(piece.translate(None, b"\x00\x01") for piece in pieces)


def pack(name: str, datatype: str, data: Sequence[Any]) -> bytes:
    """Returns the raw form of a flat list. Raises InvalidTensor for an element of a wrong type or out of range.

    Numbers of numpy count as Python's. Floats are rounded to the nearest number of the datatype.
    """
    if datatype == "BYTES":
        return pack_bytes(name, data)
    kind = DATATYPES[datatype]
    _check_types(name, kind, data)
    if datatype == "BOOL":
        return _bools(data)
    return _integers(name, kind, data) if kind.is_integer else _floats(name, kind, data)


def _check_types(name: str, kind: Datatype, data: Sequence[Any]) -> None:
    # The types of all elements in one pass of C code: there are few, and each is judged once.
    for element_type in set(map(type, data)):
        if not _is_fit(kind, element_type):
            element = next(element for element in data if type(element) is element_type)
            raise _unfit(name, kind, element)


def _is_fit(kind: Datatype, element_type: type) -> bool:
    if element_type is bool or element_type.__name__ in ("bool", "bool_"):  # the names of numpy's
        return kind.name == "BOOL"
    if kind.name == "BOOL":
        return False
    return issubclass(element_type, numbers.Integral if kind.is_integer else numbers.Real)


def _unfit(name: str, kind: Datatype, element: object) -> InvalidTensor:
    return InvalidTensor(name, f"has the element {reprlib.repr(element)}, which is no {kind.name}")


def _bools(data: Sequence[Any]) -> bytes:
    try:
        return bytes(data)
    except TypeError:  # numpy's are no integers
        return bytes(map(bool, data))


def _integers(name: str, kind: Datatype, data: Sequence[Any]) -> bytes:
    try:
        return _little_endian(array(kind.format, data))
    except OverflowError:
        element = next(element for element in data if not kind.least <= element <= kind.most)
        raise _unfit(name, kind, element) from None


def _floats(name: str, kind: Datatype, data: Sequence[Any]) -> bytes:
    try:
        if kind.name == "BF16":
            return pack_bfloat16(data)
        if kind.name == "FP16":
            return struct.pack(f"<{len(data)}e", *data)
        values = array(kind.format, data)
        if _has_infinite(values) and any(map(_is_rounded_away, data, values)):
            raise OverflowError
        return _little_endian(values)
    except OverflowError:
        raise InvalidTensor(name, f"has an element that is too large for {kind.name}") from None


def _has_infinite(values: array[float]) -> bool:
    # The sum is finite if all numbers are, which most are, and is the fastest look at them.
    return not math.isfinite(sum(values)) and (math.inf in values or -math.inf in values)


def _is_rounded_away(number: float, stored: float) -> bool:
    return math.isinf(stored) and not math.isinf(number)


def _little_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack(datatype: str, raw: bytes | memoryview) -> list[Any]:
    """Returns the elements of well-formed content as a flat list; those of BYTES are `bytes`."""
    if datatype == "BYTES":
        return unpack_bytes(raw)
    if datatype == "BOOL":
        return memoryview(raw).cast("?").tolist() if raw else []
    if datatype == "BF16":
        return unpack_bfloat16(raw)
    kind = DATATYPES[datatype]
    if datatype == "FP16":
        return list(struct.unpack(f"<{len(raw) // kind.size}e", raw))
    values = array(kind.format)
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
