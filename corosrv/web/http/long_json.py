"""JSON of long answers, made in turns between which other requests are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from flask import Response

from corosrv.base.processor import Turns

_AT_ONCE = 64  # members of a list


def long_json_response(value: Any) -> Response:
    """Makes a JSON answer of a value that may hold long lists. Lets others run meanwhile; costs more for short ones."""
    return Response(encode(value), mimetype="application/json")


def encode(value: Any) -> bytes:
    """Encodes objects and lists piece by piece. Lets others run meanwhile."""
    return b"".join(Turns().among(_pieces(value)))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield b"{"
        for number, (name, member) in enumerate(value.items()):
            yield (b"," if number else b"") + msgspec.json.encode(name) + b":"
            yield from _pieces(member)
        yield b"}"
    elif isinstance(value, list) and len(value) > _AT_ONCE:
        yield b"["
        for begin in range(0, len(value), _AT_ONCE):
            yield (b"," if begin else b"") + msgspec.json.encode(value[begin : begin + _AT_ONCE])[1:-1]
        yield b"]"
    else:
        yield msgspec.json.encode(value)
