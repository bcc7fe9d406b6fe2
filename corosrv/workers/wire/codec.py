"""Turns messages into bytes and back: a codec encodes one, a frame puts its length before it. Touches no socket.

Channels use a codec and know no message themselves; another set of messages is another codec. A frame is a length of
four bytes, big-endian, and as many bytes. `ReceiveQueue` splits what a socket has brought into messages, `SendQueue`
keeps the frames that a socket has not taken yet; both keep the descriptors that go with a message.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from corosrv.base.errors import BadFrame, FrameTooLarge
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.descriptors import Attachments

log = logging.getLogger("corosrv.wire")

Out = TypeVar("Out")
In = TypeVar("In")
Out_contra = TypeVar("Out_contra", contravariant=True)
In_co = TypeVar("In_co", covariant=True)


class Codec(Protocol[Out_contra, In_co]):
    """Encodes the messages that one side sends, and decodes those that it receives."""

    def encode(self, message: Out_contra) -> bytes: ...

    def decode(self, data: bytes) -> In_co | None:
        """Returns the message; None for one of an unknown kind, to be skipped. Raises BadFrame for invalid data."""


class _TypedMessage(msgspec.Struct):
    type: str


class Format(Protocol):
    """A way to write structs as bytes: the module msgspec.json or msgspec.msgpack."""

    @property
    def Encoder(self) -> Any: ...

    @property
    def Decoder(self) -> Any: ...


class StructCodec(Generic[Out, In]):
    """Writes messages as objects with a `type` member.

    JSON is readable and needs no library; msgpack holds bytes without conversion.
    """

    def __init__(self, incoming: Any, format: Format = msgspec.json) -> None:
        """Makes a codec that decodes `incoming`, a union of tagged structs."""
        self._encoder = format.Encoder()
        self._decoder = format.Decoder(incoming)
        self._kind = format.Decoder(_TypedMessage)
        self._known = frozenset(kind.__struct_config__.tag for kind in get_args(incoming) or (incoming,))

    def encode(self, message: Out) -> bytes:
        data: bytes = self._encoder.encode(message)
        return data

    def decode(self, data: bytes) -> In | None:
        try:
            message: In = self._decoder.decode(data)
            return message
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors, as is bad UTF-8
            kind = self._kind_of(data)
            if kind is None or kind in self._known:
                raise BadFrame(f"no message: {error}") from None
        log.warning("a message of the unknown type %.80r was skipped", kind)
        return None

    def _kind_of(self, data: bytes) -> str | None:
        try:
            kind: _TypedMessage = self._kind.decode(data)
            return kind.type
        except (ValueError, RecursionError):
            return None


MAX_FRAME = 8 << 20  # bytes of one message, unless a channel is told otherwise

_LENGTH = struct.Struct(">I")


def framed(message: bytes, limit: int = MAX_FRAME) -> bytes:
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
        buffer: bytes | bytearray = data  # most reads bring whole frames, which are not copied into the buffer first
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        messages: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < length <= self._limit:
                raise BadFrame(f"a frame of {length} bytes, where 1 to {self._limit} are allowed")
            end = start + _LENGTH.size + length
            if end > len(buffer):
                break
            messages.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        if buffer is self._buffer:
            del self._buffer[:start]
        elif start < len(buffer):
            self._buffer += memoryview(buffer)[start:]
        return messages


class ReceiveQueue:
    """Owns the messages that were not taken yet, and their descriptors."""

    __slots__ = ("_attachments", "_frames", "_messages")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        """`limit`: the most bytes that a message may have."""
        self._frames = Frames(limit)
        self._messages: deque[bytes] = deque()
        self._attachments = Attachments()

    def __bool__(self) -> bool:
        """Returns whether a whole message is there."""
        return bool(self._messages)

    def feed(self, data: bytes, fds: list[int]) -> None:
        """Adds what one read has brought. Raises BadFrame, for which the descriptors of this read are closed."""
        try:
            messages = self._frames.feed(data)
        except BadFrame:
            descriptors.close_all(fds)
            raise
        self._messages.extend(messages)
        self._attachments.arrive(fds, len(messages), self._frames.is_partial)

    def end(self) -> None:
        """Checks that the stream may end here. Raises BadFrame within a frame."""
        if self._frames.is_partial:
            raise BadFrame("the channel ended within a frame")

    def take(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Returns the next message and its descriptors, which the caller closes; None where there is none."""
        try:
            message = self._messages.popleft()
        except IndexError:  # not asked before: another thread could close in between
            return None
        return message, self._attachments.take()

    def close(self) -> None:
        """Drops all messages and closes their descriptors. Later calls do nothing."""
        self._messages.clear()
        self._attachments.close()


class SendQueue:
    """Owns frames in the order of sending, and duplicates of their descriptors until those were sent."""

    __slots__ = ("_frames", "n_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, frame: memoryview, fds: Sequence[int] = ()) -> None:
        """Puts a frame, or what is left of it, behind the others. The descriptors stay the caller's.

        Raises OSError where the process can open no duplicates.
        """
        self._frames.append((frame, tuple(map(os.dup, fds))))
        self.n_bytes += len(frame)

    @property
    def head(self) -> tuple[memoryview, tuple[int, ...]]:
        """The bytes to send next, and the descriptors that go with the first of them."""
        return self._frames[0]

    def advance(self, n_sent: int) -> bool:
        """Removes what was sent of the head; its descriptors went with the first byte. Returns whether that was all."""
        frame, fds = self._frames[0]
        self.n_bytes -= n_sent
        if n_sent == len(frame):
            self._frames.popleft()
        elif n_sent:
            self._frames[0] = frame[n_sent:], ()
        if n_sent:
            descriptors.close_all(fds)
        return n_sent == len(frame)

    def close(self) -> None:
        """Drops all frames. Later calls do nothing."""
        while self._frames:
            descriptors.close_all(self._frames.popleft()[1])
        self.n_bytes = 0
