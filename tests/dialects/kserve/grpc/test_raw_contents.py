"""Raw contents that are cut out of a message, and put into one, beside what protobuf makes of it."""

from __future__ import annotations

import gzip

import pytest

from corosrv.base.errors import CorosrvError
from corosrv.dialects.kserve.grpc import incoming, protocol
from corosrv.dialects.kserve.grpc.incoming import MIN_CUT, parse_request, with_outputs
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request

MAX = 1 << 24
LONG = bytes(range(256)) * (MIN_CUT // 256)


def tensor(name: str, content: bytes) -> Tensor:
    return Tensor(name, "UINT8", [len(content)], raw=content)


def make_message(*contents: bytes) -> bytes:
    tensors = [tensor(f"t{number}", content) for number, content in enumerate(contents)]
    request = infer_request(
        "echo", *tensors, id="7", version="2", outputs=["a", "b"], parameters={"deep": True, "n": 300}
    )
    return bytes(request.SerializeToString())


def contents_of(message: bytes) -> list[bytes]:
    request, cut = parse_request(message, MAX)
    return [bytes(content) for content in cut or request.raw_input_contents]


@pytest.mark.parametrize("contents", [(LONG,), (b"", LONG, b"x"), (LONG, LONG[:200]), (b"",) * 3 + (LONG,)])
def test_a_long_message_is_read_as_protobuf_reads_it_and_its_contents_are_no_copies(
    contents: tuple[bytes, ...],
) -> None:
    message = make_message(*contents)

    request, cut = parse_request(message, MAX)

    assert tuple(map(bytes, cut)) == contents
    assert all(view.obj is message for view in cut)
    whole = protocol.ModelInferRequest.FromString(message)
    del whole.raw_input_contents[:]
    assert request == whole


def test_a_field_behind_the_contents_is_read_as_well() -> None:
    message = make_message(LONG) + protocol.ModelInferRequest(id="later").SerializeToString()

    request, cut = parse_request(message, MAX)

    assert (request.id, len(cut)) == ("later", 1)


def test_a_compressed_message_is_inflated_once() -> None:
    message = make_message(LONG, b"x")

    assert contents_of(gzip.compress(message)) == [LONG, b"x"]


def test_short_messages_and_those_of_many_fields_are_left_to_protobuf() -> None:
    assert parse_request(make_message(b"short"), MAX)[1] == []
    many = make_message(*[b"xy"] * (MIN_CUT // 4))

    assert parse_request(many, MAX)[1] == []
    assert contents_of(many) == [b"xy"] * (MIN_CUT // 4)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x3a\xff\xff\xff\x7f",  # longer than what is left
        b"\x3a",  # without a length
        b"\x3a" + b"\xff" * 11,  # a length without an end
        b"\x3b",  # a group
        b"\x0d\x00",  # half a number
    ],
)
def test_what_is_no_message_is_refused(tail: bytes) -> None:
    with pytest.raises(CorosrvError, match="is no ModelInferRequest"):
        parse_request(make_message(LONG) + tail, MAX)


def test_other_types_of_fields_are_passed_over() -> None:
    others = (
        b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa0\x06\x96\x01"
    )  # 100: of 8 and 4 bytes, and a varint

    assert contents_of(others + make_message(LONG)) == [LONG]


@pytest.mark.parametrize("contents", [(), (b"",), (b"x" * 127, b"x" * 128, LONG)])
def test_outputs_are_added_as_protobuf_adds_them(contents: tuple[bytes, ...]) -> None:
    head = protocol.ModelInferResponse(model_name="echo", id="7")

    message = with_outputs(head.SerializeToString(), [memoryview(content) for content in contents])

    head.raw_output_contents.extend(contents)
    assert protocol.ModelInferResponse.FromString(message) == head
    assert message == head.SerializeToString()


def test_the_fields_are_those_of_the_protocol() -> None:
    request, response = protocol.ModelInferRequest.DESCRIPTOR, protocol.ModelInferResponse.DESCRIPTOR

    assert request.fields_by_name["raw_input_contents"].number << 3 | 2 == incoming._INPUTS
    assert response.fields_by_name["raw_output_contents"].number << 3 | 2 == incoming._OUTPUTS
