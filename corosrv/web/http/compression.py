"""Compressed bodies of requests and answers: gzip, and deflate in zlib's wrapping."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from corosrv.base.errors import Refused
from corosrv.base.processor import Turns

_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # of zlib, which says with them how the data are wrapped
ENCODINGS = frozenset(_WBITS)

_LEVEL = 1  # the others take several times as long for a few percent
_INPUT = 16_384  # bytes; zlib copies what it has not used of them
_PIECE = 65_536  # bytes of what is inflated or compressed at once


def inflate(body: bytes, encoding: str) -> Iterator[bytes]:
    """Yields a body piece by piece, so that the caller can stop a small one that becomes large.

    Raises Refused for data that are not of this encoding, or have no end.
    """
    inflater = zlib.decompressobj(_WBITS[encoding])
    try:
        for begin in range(0, len(body), _INPUT):
            unread = body[begin : begin + _INPUT]
            while unread:
                if inflater.eof:  # gzip may have several members
                    if encoding == "deflate":
                        raise Refused("the body has bytes behind its compressed data", None, "invalid_encoding")
                    inflater = zlib.decompressobj(_WBITS[encoding])
                yield from _inflate(inflater, unread)
                unread = inflater.unused_data
    except zlib.error:
        raise Refused(f"the body is not valid {encoding} data", None, "invalid_encoding") from None
    if not inflater.eof:
        raise Refused(f"the body's {encoding} data end early", None, "invalid_encoding")


def _inflate(inflater: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    piece = b""
    while not inflater.eof and (data or len(piece) == _PIECE):  # a full piece may not be all there is
        yield (piece := inflater.decompress(data, _PIECE))
        data = inflater.unconsumed_tail


@lru_cache(maxsize=64)
def chosen_encoding(accept_encoding: str) -> str | None:
    """Returns the encoding that a client asks for with this header: the one that it likes best, None if it has none."""
    best, best_weight = None, 0.0
    for member in accept_encoding.split(","):
        name, *parameters = (part.strip().lower() for part in member.split(";"))
        weight = _weight(parameters)
        if name in ENCODINGS and weight > best_weight:
            best, best_weight = name, weight
    return best


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def compress(pieces: Iterable[bytes | memoryview], encoding: str) -> list[bytes]:
    """Returns the compressed form of a body. Gives way to other greenlets."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WBITS[encoding])
    parts = (piece[begin : begin + _PIECE] for piece in pieces for begin in range(0, len(piece), _PIECE))
    compressed = [compressor.compress(part) for part in Turns().among(parts)]
    return [*filter(None, compressed), compressor.flush()]
