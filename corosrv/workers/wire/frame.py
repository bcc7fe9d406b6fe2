"""Packs messages into frames: a length of four bytes, big-endian, and as many bytes."""

from __future__ import annotations

import struct

from corosrv.base.errors import BadFrame, FrameTooLarge

MAX_FRAME = 8 << 20  # bytes of one message, unless a channel is told otherwise

_LENGTH = struct.Struct(">I")


def encode(message: bytes, limit: int = MAX_FRAME) -> bytes:
    """Returns the frame of a message. Raises FrameTooLarge, and BadFrame for an empty message."""
    if len(message) > limit:
        raise FrameTooLarge(len(message), limit)
    if not message:
        raise BadFrame("a message of no bytes")
    return _LENGTH.pack(len(message)) + message


class Frames:
    """Splits a stream of bytes into messages.

    A length over the limit is refused before any of the message is kept.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._limit = limit

    @property
    def is_partial(self) -> bool:
        """True within a frame, where the stream must not end."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that `data` completes, perhaps none.

        Raises BadFrame at a length that no frame has, at once: the messages before it are lost, as the stream is.
        """
        buffer = self._buffer
        buffer += data
        messages: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            end = start + _LENGTH.size + self._length_at(start)
            if end > len(buffer):
                break
            messages.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return messages

    def _length_at(self, start: int) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, start)[0]
        if not 0 < length <= self._limit:
            raise BadFrame(f"a frame of {length} bytes, where 1 to {self._limit} are allowed")
        return length
