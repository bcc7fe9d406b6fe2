"""Defines codecs: the messages of a kind of channel, and how they are written as bytes.

Channels use a codec and know no message themselves; another set of messages is another codec.
"""

from __future__ import annotations

import logging
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from corosrv.base.errors import BadFrame

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
