"""Reads a request's body: bounded, complete, and JSON."""

from __future__ import annotations

from typing import TypeVar

import gevent
import msgspec
from flask import Request
from gevent._hub_local import get_hub_if_exists
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from corosrv.decoding import body as decoding
from corosrv.decoding import json_limits
from corosrv.errors import BodyTooLarge, BodyTooSlow, InvalidJson, Refused, UnsupportedMedia
from corosrv.waits import call_in_thread

READ_SECONDS = 30.0
# Types that clients send JSON under: curl calls everything form data unless told otherwise.
_PLAUSIBLE_TYPES = ("", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream")

# A larger text is scanned in a thread.
_AT_ONCE = 65_536

T = TypeVar("T")


def read(request: Request, limit: int) -> bytes:
    """The whole body; waits for it. Raises BodyTooLarge before reading a body that says it is too large."""
    if request.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
        raise UnsupportedMedia("the body must not be compressed: send it without Content-Encoding")
    if (request.content_length or 0) > limit:
        raise BodyTooLarge(limit)
    # One more than allowed: a chunked body that goes on beyond werkzeug's limit is cut there without a word.
    request.max_content_length = limit + 1
    try:
        body = _read_in_time(request)
    except RequestEntityTooLarge:
        raise BodyTooLarge(limit) from None
    except (ClientDisconnected, OSError, ParseException) as error:
        if isinstance(error.__context__ or error, TimeoutError):
            raise BodyTooSlow from None
        raise Refused("the request body could not be read to its end", None, "incomplete_body") from error
    if len(body) > limit:
        raise BodyTooLarge(limit)
    if request.content_length is not None and len(body) != request.content_length:
        if "form" in vars(request):  # parsed by somebody before us, who has the only copy
            raise Refused(
                "the body was read as a form: send it with 'Content-Type: application/json'", None, "form_body"
            )
        raise Refused(
            f"the request body has {len(body)} bytes where Content-Length promised {request.content_length}",
            None,
            "incomplete_body",
        )
    return body


def _read_in_time(request: Request) -> bytes:
    if get_hub_if_exists() is None:
        return request.get_data(cache=False)
    with gevent.Timeout(READ_SECONDS, BodyTooSlow()):
        return request.get_data(cache=False)


def decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes the request's body. Raises Refused, which names the field at fault, and UnsupportedMedia."""
    try:
        return decoding.decode(body, decoder)
    except InvalidJson:
        content_type = request.mimetype
        if content_type not in _PLAUSIBLE_TYPES and "json" not in content_type:
            raise UnsupportedMedia(f"the body must be JSON, not {content_type}") from None
        raise


def scan_in_thread(scan: json_limits.Scanner) -> json_limits.Scanner:
    """Makes the scanner leave large texts to a thread, where it runs without the GIL while the hub serves others."""

    def scan_waiting(text: bytes) -> json_limits.Fault:
        return call_in_thread(scan, text) if len(text) > _AT_ONCE else scan(text)

    return scan_waiting
