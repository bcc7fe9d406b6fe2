"""Decodes a request's body."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from flask import Request

from corosrv.base.errors import InvalidJson, UnsupportedMedia
from corosrv.base.waits import call_in_thread
from corosrv.formats import bodies
from corosrv.formats import bodies as json_body

# Types that clients send JSON under: curl calls everything form data unless told otherwise.
_PLAUSIBLE_TYPES = ("", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream")

# A larger text is scanned in a thread.
_AT_ONCE = 65_536

T = TypeVar("T")


def decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes the request's body. Raises Refused, which names the field at fault, and UnsupportedMedia."""
    try:
        return json_body.decode(body, decoder)
    except InvalidJson:
        content_type = request.mimetype
        if content_type not in _PLAUSIBLE_TYPES and "json" not in content_type:
            raise UnsupportedMedia(f"the body must be JSON, not {content_type}") from None
        raise


def scan_in_thread(scan: bodies.Scanner) -> bodies.Scanner:
    """Makes the scanner leave large texts to a thread, where it runs without the GIL while the hub serves others."""

    def scan_waiting(text: bytes) -> bodies.Fault:
        return call_in_thread(scan, text) if len(text) > _AT_ONCE else scan(text)

    return scan_waiting
