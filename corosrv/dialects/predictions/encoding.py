"""Encodes prediction objects as JSON text in pieces: a large one in one go would stop the hub for seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gevent
import msgspec

TURN = 256 << 10  # bytes, about, that are encoded before others have a turn

_MARK = b"\0"  # stands for a LargeJson in the text around it; JSON text has no such byte
_RAW_MARK = msgspec.Raw(_MARK)


class LargeJson:
    """A value that is JSON text already, in pieces: an output that came in a file."""

    __slots__ = ("n_bytes", "pieces")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = tuple(pieces)
        self.n_bytes = sum(map(len, self.pieces))


def encode(value: Any) -> list[bytes]:
    """Encodes in one go; large values in it should be LargeJson. Never waits."""
    large: list[LargeJson] = []

    def mark(member: Any) -> msgspec.Raw:
        if not isinstance(member, LargeJson):
            raise NotImplementedError(f"{type(member).__name__} has no JSON form")
        large.append(member)
        return _RAW_MARK

    first, *texts = msgspec.json.encode(value, enc_hook=mark).split(_MARK)
    pieces = [first]
    for member, text in zip(large, texts, strict=True):
        pieces += member.pieces
        pieces.append(text)
    return pieces


def encode_in_turns(value: Mapping[str, Any], n_bytes: int) -> list[bytes]:
    """Encodes an object of about `n_bytes`; waits while others have their turns, if it is large."""
    if n_bytes < TURN:
        return encode(value)
    return encode({name: split_in_turns(member, n_bytes) for name, member in value.items()})


def split_in_turns(value: Any, n_bytes: int) -> Any:
    """Returns the value with its large texts and lists as LargeJson. `n_bytes`: its size, about.

    Waits while others have their turns, if it is large.
    """
    if n_bytes < TURN:
        return value
    if isinstance(value, str) and len(value) > TURN:
        return LargeJson(_in_turns(_text(value)))
    if isinstance(value, dict):
        return {name: split_in_turns(member, n_bytes) for name, member in value.items()}
    if isinstance(value, list) and value:
        # A copy: it may grow while others have their turns.
        return LargeJson(_in_turns(_list(list(value), max(1, TURN * len(value) // n_bytes))))
    return value


def _in_turns(pieces: Iterator[bytes]) -> Iterator[bytes]:
    n_since = 0
    for piece in pieces:
        yield piece
        n_since += len(piece)
        if n_since >= TURN:
            n_since = 0
            gevent.sleep(0)


def _text(text: str) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(text), TURN):
        yield msgspec.json.encode(text[start : start + TURN])[1:-1]
    yield b'"'


def _list(members: list[Any], n_at_once: int) -> Iterator[bytes]:
    for start in range(0, len(members), n_at_once):
        *pieces, last = encode(members[start : start + n_at_once])
        pieces.append(last[:-1])  # all but the bracket
        pieces[0] = (b"," if start else b"[") + pieces[0][1:]
        yield from pieces
    yield b"]"
