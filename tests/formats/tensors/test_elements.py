"""Elements of every datatype, from Python values to raw bytes and back."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import DATATYPES, elements
from tests.formats.tensors.values import FIXED, FLOATS, INTEGERS, ORDINARY, elements_of

NOT_INTEGERS = [True, 1.0, None, "1", [1]]
NOT_FLOATS = [True, None, "1.5", [1.5]]


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
def test_what_is_packed_is_unpacked(datatype, data):
    values = data.draw(st.lists(elements_of(DATATYPES[datatype]), max_size=20))

    raw = elements.pack("a", datatype, values)

    elements.check("a", datatype, len(values), raw)
    assert elements.unpack(datatype, raw) == values
    assert elements.unpack(datatype, memoryview(raw)) == values


@pytest.mark.parametrize(
    ("datatype", "value", "raw"),
    [
        ("BOOL", True, "01"),
        ("INT8", -2, "fe"),
        ("INT16", 258, "0201"),
        ("INT32", -2, "feffffff"),
        ("INT64", 2**62 + 1, "0100000000000040"),
        ("UINT8", 255, "ff"),
        ("UINT16", 0x0102, "0201"),
        ("UINT32", 2**32 - 1, "ffffffff"),
        ("UINT64", 2**64 - 2, "feffffffffffffff"),
        ("FP16", 1.5, "003e"),
        ("BF16", 1.5, "c03f"),
        ("FP32", 1.5, "0000c03f"),
        ("FP64", 1.5, "000000000000f83f"),
        ("BYTES", "é", "02000000c3a9"),
    ],
)
def test_the_raw_form_is_little_endian(datatype, value, raw):
    assert elements.pack("a", datatype, [value]).hex() == raw


@pytest.mark.parametrize("datatype", INTEGERS)
def test_the_least_and_the_most_integer_are_let_pass(datatype):
    kind = DATATYPES[datatype]

    raw = elements.pack("a", datatype, [kind.least, kind.most])

    assert elements.unpack(datatype, raw) == [kind.least, kind.most]


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("step", [1, 10**30])
def test_integers_beyond_the_range_are_refused(datatype, step):
    kind = DATATYPES[datatype]

    for number in (kind.least - step, kind.most + step):
        with pytest.raises(InvalidTensor, match=f"tensor 'a' has the element .* which is no {datatype}"):
            elements.pack("a", datatype, [0, number])


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_what_is_no_integer_is_refused(datatype, value):
    with pytest.raises(InvalidTensor, match=f"no {datatype}"):
        elements.pack("a", datatype, [1, value])


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("value", NOT_FLOATS)
def test_what_is_no_number_is_refused(datatype, value):
    with pytest.raises(InvalidTensor, match=f"no {datatype}"):
        elements.pack("a", datatype, [1.0, value])


@pytest.mark.parametrize("value", [0, 1, 1.0, None, "true"])
def test_only_booleans_are_bools(value):
    with pytest.raises(InvalidTensor, match="no BOOL"):
        elements.pack("a", "BOOL", [True, value])


@pytest.mark.parametrize("datatype", FLOATS)
def test_integers_are_floats(datatype):
    assert elements.unpack(datatype, elements.pack("a", datatype, [3, 0.5])) == [3.0, 0.5]


@pytest.mark.parametrize("datatype", FLOATS)
def test_what_is_not_finite_is_kept(datatype):
    raw = elements.pack("a", datatype, [math.inf, -math.inf, math.nan])

    infinite, minus_infinite, not_a_number = elements.unpack(datatype, raw)
    assert (infinite, minus_infinite) == (math.inf, -math.inf)
    assert math.isnan(not_a_number)


@pytest.mark.parametrize(
    ("datatype", "most", "too_large"),
    [
        ("FP16", 65504.0, 65520.0),
        ("BF16", 3.3895313892515355e38, 3.3961775292304957e38),
        ("FP32", 3.4028234663852886e38, 3.4028235677973366e38),
        ("FP64", 1.7976931348623157e308, 10**309),
    ],
)
def test_finite_numbers_never_become_infinite(datatype, most, too_large):
    assert elements.unpack(datatype, elements.pack("a", datatype, [most, -most])) == [most, -most]
    for number in (too_large, -too_large):
        with pytest.raises(InvalidTensor, match=f"too large for {datatype}"):
            elements.pack("a", datatype, [math.inf, number])


@pytest.mark.parametrize(
    ("datatype", "number", "rounded"),
    [
        ("FP16", 1 + 2**-11, 1.0),  # half way: to even
        ("FP16", 1 + 3 * 2**-11, 1 + 2**-9),
        ("FP16", 2**-25, 0.0),
        ("FP32", 1 + 2**-24, 1.0),
        ("FP32", 1 + 3 * 2**-24, 1 + 2**-22),
        ("FP32", 0.1, 0.10000000149011612),
    ],
)
def test_floats_are_rounded_to_the_nearest_ties_to_even(datatype, number, rounded):
    assert elements.unpack(datatype, elements.pack("a", datatype, [number])) == [rounded]


@pytest.mark.parametrize("datatype", FIXED)
@pytest.mark.parametrize("n_bytes", [-1, 1])
def test_content_of_a_wrong_size_is_refused(datatype, n_bytes):
    size = 3 * DATATYPES[datatype].size + n_bytes

    with pytest.raises(InvalidTensor, match=f"has {size} bytes, where its shape needs"):
        elements.check("a", datatype, 3, bytes(size))


@pytest.mark.parametrize("place", [0, 65_535, 65_536, 99_999])
def test_a_bool_that_is_neither_0_nor_1_is_refused_wherever_it_is(place):
    content = bytearray(b"\x00\x01" * 50_000)
    elements.check("a", "BOOL", 100_000, memoryview(content))

    content[place] = 2

    with pytest.raises(InvalidTensor, match="neither 0 nor 1"):
        elements.check("a", "BOOL", 100_000, memoryview(content))


def test_long_elements_are_quoted_in_part():
    with pytest.raises(InvalidTensor) as caught:
        elements.pack("a", "INT8", ["x" * 1_000_000])

    assert len(str(caught.value)) < 200


def test_numbers_of_numpy_count_as_pythons():
    numpy = pytest.importorskip("numpy")

    assert elements.pack("a", "INT8", [numpy.int64(3)]) == b"\x03"
    assert elements.pack("a", "FP32", [numpy.float32(1.5)]) == struct.pack("<f", 1.5)
    assert elements.pack("a", "BOOL", [numpy.True_]) == b"\x01"
    with pytest.raises(InvalidTensor):
        elements.pack("a", "INT8", [numpy.True_])


def test_every_datatype_has_an_ordinary_element():
    assert sorted(ORDINARY) == sorted(DATATYPES)
