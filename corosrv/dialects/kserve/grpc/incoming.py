"""Reads messages as they come over gRPC, compressed or not, and cuts long raw contents out of them.

grpcio would inflate messages in the thread of the event loop, where all other calls wait meanwhile: a tenth of a second
or two for each 60 kB that become 60 MB. And only newer ones (from 1.70 on) stop at the limit. So it is told to leave
messages as they come.

protobuf copies each content when it reads a message, once more when it gives it out, and twice on the way back. Here a
content is a view of the message that came, and is copied once into the one that goes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from corosrv.base.errors import MessageTooLarge, Refused
from corosrv.dialects.kserve.grpc import protocol

AS_THEY_COME = ("grpc.per_message_decompression", 0)  # an option of grpcio's servers

_MOST_INFLATION = 1032  # bytes that deflate makes of one
_GZIP_OR_ZLIB = 47  # wbits: zlib looks itself which of them it is


def is_compressed(data: bytes) -> bool:
    """Returns whether a message is in the form of gzip or of zlib, which gRPC calls deflate.

    The flag that says so does not reach us, but no message of the protocol begins as they do: its first byte is that of
    a field which is a number from 1 to 7 of wire type 2, or of type 0 with an even one; 0x1f has a type that does not
    exist, and zlib's end in 8, an odd field of type 0.
    """
    if data[:2] == b"\x1f\x8b":
        return True
    return len(data) > 1 and data[0] & 0x8F == 8 and int.from_bytes(data[:2], "big") % 31 == 0


def most_bytes(data: bytes) -> int:
    """Returns how many bytes a message may have once it is inflated."""
    return len(data) * _MOST_INFLATION if is_compressed(data) else len(data)


def inflated_bytes(data: bytes, max_bytes: int) -> int:
    """Returns how many bytes a message takes at most while it is read, of which no more than `max_bytes` inflated."""
    return len(data) + min(most_bytes(data), max_bytes) if is_compressed(data) else len(data)


def inflated(data: bytes, max_bytes: int) -> bytes:
    """Returns a message without compression. Raises Refused for a damaged one, and MessageTooLarge."""
    if is_compressed(data):
        data = _inflate(data, max_bytes)
    if len(data) > max_bytes:
        raise MessageTooLarge(max_bytes)
    return data


def parse(kind: Any, data: bytes, max_bytes: int) -> Any:
    """Returns the message. Raises Refused for bytes that are none, and MessageTooLarge for one of over `max_bytes`."""
    data = inflated(data, max_bytes)
    try:
        return kind.FromString(data)
    except protocol.DecodeError:
        raise Refused(f"the message is no {kind.DESCRIPTOR.name}", None, "invalid_message") from None


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """Returns at most one byte more than `max_bytes`. Other threads run meanwhile. Raises Refused for damaged data."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        inflated = inflater.decompress(data, max_bytes + 1)
    except zlib.error:
        raise Refused("the compressed message is damaged", None, "invalid_message") from None
    if len(inflated) <= max_bytes and (not inflater.eof or inflater.unused_data):
        raise Refused("the compressed message has no end, or more behind it", None, "invalid_message")
    return inflated


MIN_CUT = 65_536  # bytes of a message; in shorter ones protobuf's copies cost less than a look at the fields here
_MOST_FIELDS = 4096  # that are looked at; messages with more are protobuf's

_INPUTS = 7 << 3 | 2  # the tags of ModelInferRequest.raw_input_contents and ModelInferResponse.raw_output_contents
_OUTPUTS = 6 << 3 | 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # types of fields


def parse_request(data: bytes, max_bytes: int) -> tuple[protocol.Message, list[memoryview]]:
    """Reads a ModelInferRequest; raw contents that are long may be views of its bytes, and not in it.

    Raises what incoming.parse raises.
    """
    data = inflated(data, max_bytes)
    rest, contents = _cut(data) if len(data) >= MIN_CUT else (data, [])
    return parse(protocol.ModelInferRequest, rest, max_bytes), contents


def with_outputs(message: bytes, contents: Iterable[bytes | memoryview]) -> bytes:
    """Returns a serialized ModelInferResponse with these raw contents behind what it has."""
    pieces: list[bytes | memoryview] = [message]
    for content in contents:
        pieces += (bytes((_OUTPUTS,)) + _varint(len(content)), content)
    return b"".join(pieces)


def _cut(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Returns the message without its raw inputs, and these; all of it where it is not as messages usually are."""
    try:
        spans = list(_raw_spans(data))
    except (IndexError, ValueError):  # no message, or an unusual one: protobuf knows
        return data, []
    view = memoryview(data)
    ends = [0, *(end for _, _, end in spans)]
    starts = [*(start for start, _, _ in spans), len(data)]
    rest = b"".join(view[begin:end] for begin, end in zip(ends, starts, strict=True))
    return rest, [view[begin:end] for _, begin, end in spans]


def _raw_spans(data: bytes) -> Iterable[tuple[int, int, int]]:
    """Yields where each field of raw inputs starts, and where its content begins and ends.

    Raises IndexError and ValueError for what is no message, has groups, or too many fields.
    """
    at = n_fields = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        n_fields += 1
        kind = tag & 7
        if kind == _BYTES:
            length, at = _read_varint(data, at)
            if length > len(data) - at:
                raise ValueError("a field goes beyond the message")
            if tag == _INPUTS:
                yield start, at, at + length
            at += length
        elif kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("a group")
        if n_fields > _MOST_FIELDS or at > len(data):
            raise ValueError("too many fields, or one that goes beyond the message")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number, and the place behind it. Raises IndexError at the end, and ValueError for a longer one."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has more than ten bytes")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
