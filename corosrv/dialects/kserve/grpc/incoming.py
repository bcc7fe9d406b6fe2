"""Reads messages as they come over gRPC, compressed or not.

grpcio would inflate them in the thread of the event loop, where all other calls wait meanwhile: a tenth of a second or
two for each 60 kB that become 60 MB. And only newer ones (from 1.70 on) stop at the limit. So it is told to leave
messages as they come.
"""

from __future__ import annotations

import zlib
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
