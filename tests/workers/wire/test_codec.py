import logging
from typing import Any

import msgspec
import pytest

from corosrv.base.errors import BadFrame
from corosrv.contracts.jobs import setup
from corosrv.workers.wire import messages
from corosrv.workers.wire.codec import StructCodec

to_worker: StructCodec[messages.ControlToServer, messages.ControlToWorker] = StructCodec(messages.ControlToWorker)
to_server: StructCodec[messages.ControlToWorker, messages.ControlToServer] = StructCodec(messages.ControlToServer)


@pytest.mark.parametrize(
    "message",
    [
        messages.Init("predict.py:Predictor"),
        messages.Init("predict.py:Predictor", 4),
        messages.Cancel(3, "x"),
        messages.HealthCheck("1"),
        messages.Shutdown(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_one_side_encodes_the_other_decodes(message: messages.ControlToWorker) -> None:
    assert to_worker.decode(to_server.encode(message)) == message


def test_a_message_of_an_unknown_type_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "corosrv.wire"):
        assert to_worker.decode(b'{"type":"weather","slot":"none"}') is None

    assert "'weather'" in caplog.text


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    assert to_worker.decode(b'{"type":"cancel","slot":1,"id":"x","why":"so"}') == messages.Cancel(1, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b"[]",
        b"{}",
        b'{"type":3}',
        b'{"type":"cancel"}',
        b'{"type":"cancel","slot":"one","id":"x"}',
        b'{"type":"cancel","slot":1,"id":"\xff"}',
        b'{"type":"cancel","slot":1,"id":"x"',
    ],
)
def test_what_is_no_message_is_a_bad_frame(data: bytes) -> None:
    with pytest.raises(BadFrame):
        to_worker.decode(data)


def test_a_message_too_deep_to_read_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="recursion"):
        to_server.decode(b'{"type":"ready","slots":[],"schema":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}")


def test_a_set_of_one_message_needs_no_union() -> None:
    codec: StructCodec[messages.SlotToServer, messages.SlotToWorker] = StructCodec(messages.SlotToWorker)

    assert codec.decode(codec.encode(setup.Done("x", 1.0))) is None
    with pytest.raises(BadFrame):
        codec.decode(b'{"type":"predict"}')


class Blob(msgspec.Struct, tag_field="type", tag="blob"):
    data: bytes


class Name(msgspec.Struct, tag_field="type", tag="name"):
    text: str


@pytest.mark.parametrize("format", [msgspec.json, msgspec.msgpack], ids=lambda format: format.__name__)
def test_both_formats_tell_messages_apart_and_skip_unknown_ones(format: Any, caplog: pytest.LogCaptureFixture) -> None:
    codec: StructCodec[Any, Any] = StructCodec(Blob | Name, format)

    assert codec.decode(codec.encode(Blob(b"\xff\0" * 100))) == Blob(b"\xff\0" * 100)
    assert codec.decode(codec.encode(Name("x"))) == Name("x")
    assert codec.decode(codec.encode({"type": "weather"})) is None
    for data in (b"", b"\xc1", codec.encode({"type": "name", "text": 3}), codec.encode([])):
        with pytest.raises(BadFrame):
            codec.decode(data)


def test_msgpack_takes_bytes_as_they_are() -> None:
    codec: StructCodec[Any, Any] = StructCodec(Blob, msgspec.msgpack)

    assert len(codec.encode(Blob(bytes(1 << 20)))) < (1 << 20) + 100
