"""Finds parts of JSON texts before they are decoded."""

from __future__ import annotations

from typing import Any

import msgspec

_BACKSLASH = 0x5C
LIST_DECODER: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Any])


def mask(text: bytes) -> bytes:
    """Returns a text of the same length, in which each quote begins or ends a string: none is escaped."""
    if b"\\" not in text:
        return text
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__")


def escape_end(text: bytes, begin: int, end: int) -> int:
    """Returns the end of a part of a text, moved on by one where it would fall behind an escaping backslash."""
    part = text[begin:end]
    n_backslashes = len(part) - len(part.rstrip(b"\\"))
    return min(end, len(text)) + n_backslashes % 2


def string_end(text: bytes, begin: int, limit: int) -> int:
    """Returns the place of the quote that ends the string whose content begins here; -1 if none is before `limit`."""
    end = text.find(b'"', begin, limit)
    while end >= 0 and _is_escaped(text, begin, end):
        end = text.find(b'"', end + 1, limit)
    return end


def _is_escaped(text: bytes, begin: int, at: int) -> bool:
    n_backslashes = 0
    while at > begin and text[at - 1] == _BACKSLASH:
        at -= 1
        n_backslashes += 1
    return n_backslashes % 2 == 1
