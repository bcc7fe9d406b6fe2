"""Packs elements of the datatype BYTES: each is a little-endian length of four bytes, and as many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from corosrv.base.errors import InvalidTensor
from corosrv.base.processor import Turns

_LENGTH = struct.Struct("<I")
_TURN = 4096  # elements after which others may run


def check(name: str, n_elements: int, raw: bytes | memoryview) -> None:
    """Raises InvalidTensor unless `raw` holds exactly so many elements. Gives way to other greenlets."""
    if n_elements * _LENGTH.size > len(raw):
        raise InvalidTensor(name, f"has {len(raw)} bytes, too few for the {n_elements} elements of its shape")
    at, read_length, turns = 0, _LENGTH.unpack_from, Turns()
    try:
        for begin in range(0, n_elements, _TURN):
            for _ in range(min(_TURN, n_elements - begin)):
                at += 4 + read_length(raw, at)[0]
            turns.give_way()
    except struct.error:
        raise InvalidTensor(name, "ends before its last element, or within it") from None
    if at > len(raw):
        raise InvalidTensor(name, "has a BYTES element that ends behind its content")
    if at < len(raw):
        raise InvalidTensor(name, f"has {len(raw) - at} bytes behind the {n_elements} elements of its shape")


def unpack(raw: bytes | memoryview) -> list[bytes]:
    """Returns the elements of content that `check` lets pass."""
    return [element for batch in batches(raw, _TURN, len(raw)) for element in batch]


def batches(raw: bytes | memoryview, n_elements: int, n_bytes: int) -> Iterator[list[bytes]]:
    """Yields the elements of content that `check` lets pass, in lists of so many elements and bytes or little more."""
    at, size, read_length = 0, len(raw), _LENGTH.unpack_from
    while at < size:
        batch: list[bytes] = []
        limit = min(at + n_bytes, size)
        while at < limit and len(batch) < n_elements:
            begin = at + 4
            at = begin + read_length(raw, at)[0]
            batch.append(bytes(raw[begin:at]))
        yield batch


def pack(name: str, data: Iterable[object]) -> bytes:
    """Returns the raw form of strings, which become UTF-8, and of bytes. Raises InvalidTensor for anything else."""
    pieces: list[bytes] = []
    for element in data:
        content = _content(name, element)
        try:
            pieces += (_LENGTH.pack(len(content)), content)
        except struct.error:
            raise InvalidTensor(name, "has a BYTES element of more than 4 GiB") from None
    return b"".join(pieces)


def _content(name: str, element: object) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidTensor(name, "has a string with half of a surrogate pair, which is no character") from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidTensor(name, f"has a BYTES element that is a {type(element).__name__} and no string")
