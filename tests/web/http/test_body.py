"""Bodies: limits, depth, encodings, types, and what is JSON."""

import io
from contextlib import suppress

import gevent
import msgspec
import pytest
from flask import Request
from hypothesis import example, given
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import BodyTooLarge, BodyTooSlow, InvalidJson, Refused, TooManyBodies, UnsupportedMedia
from corosrv.web.http import body_reader
from corosrv.web.http.body_reader import PACED, BodyReader
from corosrv.web.http.heap import BodyBudget

anything = msgspec.json.Decoder()


class Point(msgspec.Struct):
    x: int
    inner: list["Point"] = []


point = msgspec.json.Decoder(Point)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def request(data: bytes = b"", content_type: str | None = "application/json", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(EnvironBuilder(method="POST", data=data, content_type=content_type, headers=named).get_environ())


def decode(data: bytes, decoder=anything, content_type: str | None = "application/json"):
    return body_reader.decode(request(content_type=content_type), data, decoder)


# Reading.


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_body_up_to_the_limit_is_read(size):
    assert BodyReader().read(request(b"x" * size), limit=100) == b"x" * size


def test_a_body_that_says_it_is_too_large_is_not_read():
    sent = request(b"x" * 101)

    with pytest.raises(BodyTooLarge, match="100 bytes"):
        BodyReader().read(sent, limit=100)

    assert sent.environ["wsgi.input"].tell() == 0


def chunked(data: bytes) -> Request:
    """A body without a length, as servers hand over chunked ones."""
    environ = EnvironBuilder(method="POST", input_stream=io.BytesIO(data)).get_environ()
    environ.pop("CONTENT_LENGTH", None)
    environ["wsgi.input_terminated"] = True
    return Request(environ)


def test_a_body_without_a_length_is_counted_while_it_is_read():
    assert BodyReader().read(chunked(b"x" * 100), limit=100) == b"x" * 100

    with pytest.raises(BodyTooLarge):
        BodyReader().read(chunked(b"x" * 101), limit=100)


def test_a_body_that_ends_early_is_refused():
    sent = request(b"x" * 10)
    sent.environ["CONTENT_LENGTH"] = "20"

    with pytest.raises(Refused) as refused:
        BodyReader().read(Request(sent.environ), limit=100)

    assert refused.value.code == "incomplete_body"


def test_a_body_that_the_app_around_read_as_a_form_says_how_to_send_it():
    sent = request(b'{"x": 1}', "application/x-www-form-urlencoded")
    assert sent.form  # as a hook of the app may do

    with pytest.raises(Refused, match="Content-Type: application/json"):
        BodyReader().read(sent, limit=100)


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP"])
def test_a_compressed_body_is_refused(encoding):
    with pytest.raises(UnsupportedMedia, match="compressed"):
        BodyReader().read(request(b"x", Content_Encoding=encoding), limit=100)


def test_an_encoding_that_changes_nothing_is_taken():
    assert BodyReader().read(request(b"x", Content_Encoding="Identity"), limit=100) == b"x"


class SlowBody:
    """Comes a fifth of a second after it is asked for."""

    def read(self, size: int = -1) -> bytes:
        gevent.sleep(0.2)
        return b"x" * 10


def slow(**environ: bool) -> Request:
    return Request(request(b"x" * 10).environ | {"wsgi.input": SlowBody()} | environ)


def test_a_body_has_its_time_where_the_server_does_not_look_after_that():
    gevent.get_hub()
    reader = BodyReader(seconds=0.05)

    with pytest.raises(BodyTooSlow):
        reader.read(slow(), limit=100)
    assert reader.read(slow(**{PACED: True}), limit=100) == b"x" * 10


def test_bodies_share_a_budget_until_their_requests_are_over():
    reader = BodyReader(budget=BodyBudget(100))
    first, second = request(b"x" * 60), request(b"y" * 60)
    reader.read(first, limit=100)

    with pytest.raises(TooManyBodies, match="100 bytes"):
        reader.read(second, limit=100)
    reader.release(second)
    reader.release(first)
    reader.release(first)

    assert reader.read(Request(second.environ), limit=100) == b"y" * 60


@pytest.mark.parametrize("make", [request, chunked])
def test_a_large_body_is_counted_as_it_comes(make):
    budget = BodyBudget(150_000)
    reader = BodyReader(budget=budget)
    sent = make(b"x" * 1_000_000)

    with pytest.raises(TooManyBodies):
        reader.read(sent, limit=10_000_000)

    assert sent.environ["wsgi.input"].tell() < 300_000
    assert budget.n_bytes <= 150_000
    reader.release(sent)
    assert budget.n_bytes == 0


# Decoding.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1,}',
        b'{"a": 01}',
        b'"\xff"',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\n"}',
        b'{"\xff": 1}',
    ],
)
def test_what_is_not_json_is_refused(data):
    with pytest.raises(Refused, match="not valid JSON") as refused:
        decode(data)

    assert refused.value.code == "invalid_json"


def test_a_byte_order_mark_before_the_body_is_passed_over():
    assert decode(BYTE_ORDER_MARK + b'{"x": 1}', point) == Point(1)


@pytest.mark.parametrize("data", [b"[]", b"5", b'"x"', b"null", b"true"])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(Refused, match="JSON object") as refused:
        decode(data, point)

    assert refused.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("data", "param", "code"),
    [
        (b"{}", "x", "missing_required_parameter"),
        (b'{"x": "1"}', "x", "invalid_value"),
        (b'{"x": 1.5}', "x", "invalid_value"),
        (b'{"x": true}', "x", "invalid_value"),
        (b'{"x": null}', "x", "invalid_value"),
        (b'{"x": 1, "inner": {}}', "inner", "invalid_value"),
        (b'{"x": 1, "inner": [{"x": 1}, {"x": "2"}]}', "inner[1].x", "invalid_value"),
        (b'{"x": 1, "inner": [{}]}', "inner[0].x", "missing_required_parameter"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(data, param, code):
    with pytest.raises(Refused) as refused:
        decode(data, point)

    assert (refused.value.param, refused.value.code) == (param, code)
    assert param in str(refused.value)
    assert "`" not in str(refused.value)


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"b":', b"}")])
def test_nesting_ends_at_128_levels(opening, closing):
    assert decode(nested(opening, closing, 128))

    with pytest.raises(Refused, match="deeper than 128 levels") as refused:
        decode(nested(opening, closing, 129))
    assert refused.value.code == "invalid_json"


def test_nesting_is_refused_also_where_nobody_reads():
    with pytest.raises(Refused, match="deeper than 128 levels"):
        decode(b'{"x": 1, "other": ' + b"[" * 200 + b"]" * 200 + b"}", point)


def test_a_hundred_thousand_brackets_kill_nobody():
    with pytest.raises(Refused):
        decode(b"[" * 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "' + b"[" * 200 + b'"}',
        b'{"a": "\\"' + b"{" * 200 + b'"}',
        b'{"a": "\\\\", "b": "' + b"[" * 200 + b'"}',
        b"[" + b"[]," * 200 + b"[]]",
    ],
)
def test_brackets_in_strings_and_side_by_side_are_not_deep(data):
    decode(data)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data",
        "application/xml",
    ],
)
def test_what_parses_is_taken_under_any_type(content_type):
    assert decode(b'{"a": 1}', content_type=content_type) == {"a": 1}


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/json", InvalidJson),
        ("application/x-www-form-urlencoded", InvalidJson),
        (None, InvalidJson),
        ("application/xml", UnsupportedMedia),
        ("multipart/form-data", UnsupportedMedia),
        ("image/png", UnsupportedMedia),
    ],
)
def test_what_does_not_parse_is_415_under_a_type_that_is_clearly_something_else(content_type, kind):
    with pytest.raises(Refused) as refused:
        decode(b"<a/>", content_type=content_type)

    assert type(refused.value) is kind


# Fuzzing: the scan before the parser, and the parser, meet whatever stands in a body.


@given(data=st.binary() | st.text(alphabet='{}[]":,\\0123456789eE.+- ').map(str.encode))
@example(data=b'{"a":"\\')
def test_any_bytes_are_decoded_or_refused(data):
    decoded = None
    with suppress(Refused):
        decoded = body_reader.decode(request(data), data, msgspec.json.Decoder(dict))

    assert decoded is None or decoded == msgspec.json.decode(data.removeprefix(BYTE_ORDER_MARK))
