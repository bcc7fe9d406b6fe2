"""Reads base64, in which lines may break, and data URLs, strictly: any other character too much is an error."""

from __future__ import annotations

import binascii
import re

from corosrv.base.errors import InvalidImage
from corosrv.base.processor import Turns

_SCHEME = "data:"
_MOST_HEAD = 256  # characters in front of the comma
_PIECE = 1 << 18  # characters between two turns of others; divisible by 4, so that each piece stands for whole bytes
_ALPHABET = re.compile(r"[A-Za-z0-9+/]*")
_LAST = re.compile(r"[A-Za-z0-9+/]*={0,2}")  # padding is allowed at the very end alone


def is_data_url(url: str) -> bool:
    return url[: len(_SCHEME)].lower() == _SCHEME


def read_data_url(url: str, param: str, max_bytes: int) -> bytes:
    """Returns the content of `data:image/...;base64,...`. Gives way to others while it decodes. Raises InvalidImage."""
    head, comma, text = url[len(_SCHEME) :].partition(",")
    media_type, *options = head[:_MOST_HEAD].lower().split(";")
    if not comma or options[-1:] != ["base64"]:
        raise InvalidImage(f"{param}: a data URL begins with data:image/TYPE;base64,", param)
    if not media_type.startswith("image/"):
        raise InvalidImage(f"{param}: a data URL of an image has a type as image/png, not {media_type[:40]!r}", param)
    return read_base64(text, param, max_bytes)


def read_base64(text: str, param: str, max_bytes: int) -> bytes:
    """Returns what base64 stands for, `max_bytes` at most. Gives way to others. Raises InvalidImage.

    Line breaks are skipped: `base64` and `encodebytes` of Python put some there.
    """
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    if not text:
        raise InvalidImage(f"{param}: the image is empty", param)
    n_bytes = len(text) * 3 // 4 - text[-2:].count("=")
    if n_bytes > max_bytes:
        raise InvalidImage(f"{param}: the image has {n_bytes} bytes, and {max_bytes} are allowed", param)
    if len(text) % 4:
        raise _not_base64(param)
    pieces, turns = [], Turns()
    for start in range(0, len(text), _PIECE):
        turns.give_way()
        piece = text[start : start + _PIECE]
        if not (_LAST if start + _PIECE >= len(text) else _ALPHABET).fullmatch(piece):
            raise _not_base64(param)
        pieces.append(binascii.a2b_base64(piece))
    return b"".join(pieces)


def _not_base64(param: str) -> InvalidImage:
    words = "A-Z, a-z, 0-9, + and /, padded with =, without spaces"
    return InvalidImage(f"{param}: the image is not base64: {words}", param)
