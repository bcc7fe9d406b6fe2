"""Describes what a front serves, as it stands in Redis for the other fronts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from corosrv.contracts.jobs.infer import HandlerCard

MAX_BYTES = 4 << 20  # of one front's description


class FrontOffer(msgspec.Struct, frozen=True):
    """Says what one front serves. `handlers`: by domain, the word that each front has for the same dispatcher."""

    host: str = ""  # for people
    models: list[str] = []  # that its own engine serves
    handlers: dict[str, list[HandlerCard]] = {}


@dataclass(frozen=True, slots=True)
class FrontRecord:
    """Holds what another front said of itself. `version` changes with it."""

    id: str
    version: bytes
    served: FrontOffer = field(default_factory=FrontOffer)


_DECODER = msgspec.msgpack.Decoder(FrontOffer)


def encode(served: FrontOffer) -> tuple[bytes, bytes]:
    """Returns the bytes that stand for a description, and its version."""
    body = msgspec.msgpack.encode(served)
    return body, hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def decode(id: str, version: bytes, body: bytes) -> FrontRecord:
    """Reads a description. One that cannot be read, or is too large, serves nothing: others may write to Redis too."""
    if len(body) <= MAX_BYTES:
        try:
            return FrontRecord(id, version, _DECODER.decode(body))
        except msgspec.MsgspecError:
            pass
    return FrontRecord(id, version)
