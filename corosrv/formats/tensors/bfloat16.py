"""Converts numbers of the datatype BF16, the upper half of a 32-bit float."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

_FLOAT = struct.Struct("<f")
_BITS = struct.Struct("<I")
_HALF = struct.Struct("<H")
_NAN = 0x7FC0
_INFINITE = 0x7F80


def pack(data: Iterable[float]) -> bytes:
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


def unpack(raw: bytes | memoryview) -> list[float]:
    wide = widen(raw)
    return list(struct.unpack(f"<{len(wide) // 4}f", wide))
