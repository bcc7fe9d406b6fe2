"""BF16: rounding from doubles, and widening."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.formats.tensors import elements

STEP = 2.0**-7  # between 1 and 2


def packed(number: float) -> float:
    return elements.unpack_bfloat16(elements.pack_bfloat16([number]))[0]


@pytest.mark.parametrize(
    ("number", "rounded"),
    [
        (1 + STEP / 2, 1.0),  # half way: to even
        (1 + 3 * STEP / 2, 1 + 2 * STEP),
        (1 + STEP / 2 + 2.0**-40, 1 + STEP),  # half way as a 32-bit float, and above it as a double
        (1 + 3 * STEP / 2 - 2.0**-40, 1 + STEP),
        (-1 - STEP / 2 - 2.0**-40, -1 - STEP),
        (2.0**-134, 0.0),
        (3 * 2.0**-134, 2.0**-132),
        (-0.0, -0.0),
    ],
)
def test_numbers_are_rounded_once_ties_to_even(number, rounded):
    assert packed(number) == rounded
    assert math.copysign(1, packed(number)) == math.copysign(1, rounded)


@given(st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7F80 != 0x7F80))
def test_every_finite_number_survives(bits):
    raw = struct.pack("<H", bits)

    assert elements.pack_bfloat16(elements.unpack_bfloat16(raw)) == raw


@given(st.floats(2.0**-130, 3.38e38))
def test_the_nearest_number_is_taken(number):
    taken = packed(number)

    (bits,) = struct.unpack("<H", elements.pack_bfloat16([number]))
    below, above = (struct.unpack("<f", struct.pack("<HH", 0, bits + step))[0] for step in (-1, 1))
    assert abs(taken - number) <= min(abs(below - number), abs(above - number))


def test_no_content_is_no_numbers():
    assert elements.unpack_bfloat16(b"") == []
