"""Long bodies, whose data are cut out and decoded in pieces."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import InvalidJson, Refused
from corosrv.base.processor import Turns
from corosrv.dialects.kserve import json_data
from corosrv.dialects.kserve.infer_request import INFER_DECODER, decode_request
from corosrv.dialects.kserve.json_data import MAX_REST, cut_data
from corosrv.formats.bodies import decode_unscanned
from tests.dialects.kserve.bodies import nested

TEXTS = st.text('ab"\\[],:{}é\n', max_size=12)
LEAVES = TEXTS | st.integers() | st.booleans() | st.none()
ARRAYS = st.lists(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=6), max_leaves=60), max_size=12)


def join(data: json_data.LongData) -> list[Any]:
    """Puts the pieces of an array together again."""
    whole: list[Any] = []
    n_open = 0
    for piece, n_open_after in data.decode():
        _append(whole, piece, n_open)
        n_open = n_open_after
    return whole


def _append(whole: list[Any], piece: list[Any], n_open: int) -> None:
    if n_open > 1:
        _append(whole[-1], piece[0], n_open - 1)
        piece = piece[1:]
    whole.extend(piece)


@pytest.fixture(params=[3, 17, 100])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The size of what is looked at together, so small that pieces end everywhere."""
    monkeypatch.setattr(json_data, "WINDOW", request.param)
    monkeypatch.setattr(json_data, "_FIRST_WINDOW", request.param)
    return request.param


@pytest.mark.parametrize("separators", [(",", ":"), (" ,\n ", " :\t")])
@settings(max_examples=150)
@given(array=ARRAYS)
def test_the_pieces_together_are_the_array(separators, array):
    text = json.dumps(array, ensure_ascii=False, separators=separators).encode()
    for size in (3, 17, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_data, "WINDOW", size)
            patch.setattr(json_data, "_FIRST_WINDOW", size)
            data, end = json_data.LongDataScanner(b"12" + text + b"]]", 2).scan(Turns())

        assert end == 2 + len(text)
        assert join(data) == array


def test_arrays_are_decoded_in_more_than_one_piece(window):
    data, _ = json_data.LongDataScanner(json.dumps(list(range(1000))).encode(), 0).scan(Turns())

    assert len(data.pieces) > 10
    assert max(piece.end - piece.begin for piece in data.pieces) < 2 * window + 20


@pytest.mark.parametrize("shape", [[60_000], [300, 200], [20_000, 3], [1, 60_000], [60_000, 1]])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
def test_long_data_are_the_tensor_that_short_data_are(shape, datatype):
    numbers = random.Random(1).choices(range(-1000, 1000), k=60_000)
    elements = [f'"{n}\\,]' for n in numbers] if datatype == "BYTES" else numbers
    expected = [element.encode() for element in elements] if datatype == "BYTES" else elements

    for data in (elements, nested(elements, shape)):
        body = {"inputs": [{"name": "a", "datatype": datatype, "shape": shape, "data": data}], "id": "7"}
        decoded = decode_request(json.dumps(body).encode(), None, INFER_DECODER)
        assert decoded.request.inputs[0].data == expected
        assert decoded.id == "7"


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([20_001, 3], nested(range(60_000), [20_000, 3])),
        ([3, 20_000], nested(range(60_000), [20_000, 3])),
        ([20_000, 3], [*nested(range(59_997), [19_999, 3]), [1, 2]]),
        ([20_000, 3], [*nested(range(59_997), [19_999, 3]), [1, 2, 3, 4]]),
        ([20_000, 3], [*nested(range(59_997), [19_999, 3]), 1, 2, 3]),
        ([60_000], [*range(59_999), None]),
        ([60_000], [*range(59_999), 1.0]),
        ([60_000], [*range(59_999), "1"]),
        ([60_000], [*range(59_999), {"a": [1]}]),
        ([59_999], list(range(60_000))),
    ],
)
def test_long_data_are_checked_as_short_ones_are(shape, data):
    body = {"inputs": [{"name": "a", "datatype": "INT32", "shape": shape, "data": data}]}

    with pytest.raises(Refused, match="tensor 'a'"):
        decode_request(json.dumps(body).encode(), None, INFER_DECODER)


@pytest.mark.parametrize(
    "data",
    [b"[1,,2]", b"[1 2]", b"[1,2", b"[[1],2]]", b'["a]', b"[01]", b"[1,2]]", b"[}", b'["a" "b"]', b"[1,]", b"[,1]"],
)
def test_long_text_that_is_no_json_is_refused(data):
    numbers = b",".join(b"%d" % n for n in range(30_000))
    for array in (data, data[:1] + numbers + b"," + data[1:], data[:-1] + b"," + numbers + data[-1:]):
        body = b'{"inputs":[{"name":"a","datatype":"INT32","shape":[2],"padding":"%b","data":%b}]}' % (
            b"x" * 70_000,
            array,
        )
        with pytest.raises(Refused):
            decode_request(body, None, INFER_DECODER)


def test_only_the_data_of_inputs_are_cut():
    members = {"a": [1], "data": [2], "inputs": [{"name": "a", "x": {"data": [3]}, "data": [4, 5]}, {"data": "[6]"}]}

    rest, arrays = cut_data(json.dumps(members).encode())

    (name,) = arrays
    members["inputs"][0]["data"] = name
    assert json.loads(rest) == members
    assert join(arrays[name]) == [4, 5]


def test_a_client_cannot_name_an_array_that_was_cut():
    tensor = {"name": "a", "datatype": "INT32", "shape": [1], "data": [5]}
    body = json.dumps({"inputs": [{**tensor, "x": "x" * 70_000}, {**tensor, "name": "b", "data": "0:0"}]}).encode()

    with pytest.raises(Refused, match="no array"):
        decode_request(body, None, INFER_DECODER)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [], "x": "' + b"a" * MAX_REST + b'"}',
        b'{"inputs": [], "x": [' + b"1," * MAX_REST + b"1]}",
        b'{"inputs": [], "x": ' + b"1" * MAX_REST + b"}",
        b'{"inputs": [], "x": "' + b"\\" * 2 * MAX_REST + b'"}',
        b'{"inputs": [' + b'{"data":[1]},' * (MAX_REST // 5) + b"]}",
    ],
)
def test_much_beside_the_data_is_refused(body):
    with pytest.raises(Refused, match="beside the data"):
        decode_request(body, None, INFER_DECODER)


@pytest.mark.parametrize(
    "text", [b"[" * 70_000, b'{"inputs":[{"data":' + b"[" * 70_000, b'{"inputs":[{"data":["' + b"\\" * 70_000]
)
def test_deep_or_endless_text_is_refused(text):
    with pytest.raises(Refused):
        decode_request(text, None, INFER_DECODER)


def test_data_that_are_nested_too_deep_are_refused_before_they_are_decoded():
    data = b"[1," * 40_000 + b"1" + b"]" * 40_000

    with pytest.raises(Refused, match="nested deeper than 64 levels"):
        json_data.LongDataScanner(data, 0).scan(Turns())


@pytest.mark.parametrize("separator", [b"", b" ", b":", b"]["])
def test_strings_without_a_comma_between_them_are_refused_in_the_first_window(separator):
    data = b"[" * 60 + separator.join([b'"a"'] * 300_000)

    with pytest.raises(InvalidJson, match="no comma between them"):
        json_data.LongDataScanner(data, 0).scan(Turns())


def test_data_beyond_the_shape_are_not_decoded_to_their_end(monkeypatch: pytest.MonkeyPatch):
    n_pieces = 0

    def count(text: bytes, decoder: Any) -> Any:
        nonlocal n_pieces
        n_pieces += 1
        return decode_unscanned(text, decoder)

    monkeypatch.setattr(json_data, "decode_unscanned", count)
    array, _ = json_data.LongDataScanner(json.dumps([1] * 500_000).encode(), 0).scan(Turns())

    with pytest.raises(Refused, match="more elements than the 2 of the shape"):
        json_data.tensor("a", "INT32", [2], array)

    assert len(array.pieces) > 10
    assert n_pieces == 1


def test_others_run_while_millions_of_numbers_are_decoded():
    numbers = json.dumps([0.123456789] * 2_000_000).encode()
    body = b'{"inputs":[{"name":"a","datatype":"FP32","shape":[2000000],"data":%b}]}' % numbers
    lags = []

    def tick() -> None:
        while True:
            began = time.monotonic()
            gevent.sleep(0.001)
            lags.append(time.monotonic() - began)

    ticking = gevent.spawn(tick)
    gevent.idle()
    decode_request(body, None, INFER_DECODER)
    ticking.kill()

    assert len(lags) > 10
    assert sorted(lags)[len(lags) // 2] < 0.2  # the machine may be busy
