"""Decoded values to narrower types."""

import msgspec
import pytest

from corosrv.base.errors import Refused
from corosrv.formats import bodies


class Point(msgspec.Struct):
    x: int
    inner: list["Point"] = []


def test_a_decoded_value_is_converted():
    assert bodies.convert({"x": 1}, Point, "input[0]") == Point(1)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("x", "input[0]"),
        ({}, "input[0].x"),
        ({"x": "y"}, "input[0].x"),
        ({"x": 1, "inner": [{"x": 1}, {"x": 1.5}]}, "input[0].inner[1].x"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_place(value, param):
    with pytest.raises(Refused) as refused:
        bodies.convert(value, Point, "input[0]")

    assert refused.value.param == param
    assert param in str(refused.value)


def test_a_number_that_no_float_holds_names_its_field():
    with pytest.raises(Refused, match="x: number out of range"):
        bodies.decode(b'{"x": 9e308}', msgspec.json.Decoder(Point))


@pytest.mark.parametrize(
    ("kind", "words"), [(Point, "a JSON object: expected object"), (list, "a JSON list: expected")]
)
def test_a_body_of_another_kind_is_told_which_one_is_meant(kind, words):
    with pytest.raises(Refused, match=f"the body must be {words}"):
        bodies.decode(b"5", msgspec.json.Decoder(kind))
