"""Reads a request's body: bounded, complete, and JSON."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gevent
import msgspec
from flask import Request
from gevent._hub_local import get_hub_if_exists
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from corosrv.engine.binding import JsonLimits
from corosrv.errors import BodyTooLarge, BodyTooSlow, Refused, UnsupportedMedia
from corosrv.waits import call_in_thread

MAX_DEPTH = 128
MAX_KEYS = 4096  # of one object
MAX_DIGITS = 308  # of one number
MAX_VALUES = 2**20
READ_SECONDS = 30.0
# Types that clients send JSON under: curl calls everything form data unless told otherwise.
_PLAUSIBLE_TYPES = ("", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream")

_LIMITS = JsonLimits(depth=MAX_DEPTH, keys=MAX_KEYS, digits=MAX_DIGITS, values=MAX_VALUES)
_FAULTS = {
    "depth": f"is nested deeper than {MAX_DEPTH} levels",
    "keys": f"has an object of more than {MAX_KEYS} keys",
    "digits": f"has a number of more than {MAX_DIGITS} digits",
    "values": f"has more than {MAX_VALUES} values",
}
# A larger body is looked through in another thread, while the hub serves others.
_AT_ONCE = 65_536
_MOST_WORDS = 200  # characters of what is said about a field

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
    """The body as the decoder's type. Raises Refused, which names the field at fault."""
    try:
        check_limits(body)
        body.decode("utf-8")
        with _without_collector(len(body)):
            return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        content_type = request.mimetype
        if content_type not in _PLAUSIBLE_TYPES and "json" not in content_type:
            raise UnsupportedMedia(f"the body must be JSON, not {content_type}") from None
        reason = f"not UTF-8 from byte {error.start} on" if isinstance(error, UnicodeDecodeError) else error
        raise Refused(f"the body is not valid JSON: {reason}", None, "invalid_json") from None


@contextmanager
def _without_collector(size: int) -> Iterator[None]:
    """A large body may become hundreds of thousands of objects: looking through them for garbage again and again, while
    they are made, takes several times as long as making them."""
    is_paused = size > _AT_ONCE and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if is_paused:
            gc.enable()


def check_limits(body: bytes) -> None:
    """Refuses what would take a parser too deep or too long, also in fields that nobody reads. May wait."""
    fault = call_in_thread(_LIMITS.fault, body) if len(body) > _AT_ONCE else _LIMITS.fault(body)
    if fault is not None:
        limit, at = fault
        raise Refused(f"the body {_FAULTS[limit]} (byte {at})", None, "invalid_json")


def convert(value: Any, kind: type[T], param: str) -> T:
    """A decoded value, which stands at `param`, as a narrower type. Raises Refused, which names the field at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), param) from None


def _invalid_field(message: str, within: str = "") -> Refused:
    """`Expected `int`, got `str` - at `$.n`` to a sentence and a parameter."""
    words, _, path = message.partition(" - at `$")
    param = (within + path.rstrip("`")).lstrip(".") or None
    words = words.replace("`", "")
    # A value that is none of those that are known is quoted, however long it is.
    words = words[:1].lower() + (words[1:] if len(words) <= _MOST_WORDS else words[1:_MOST_WORDS] + "...")
    missing = re.match(r"object missing required field (\w+)", words)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return Refused(f"{param} is required", param, "missing_required_parameter")
    if param is None:
        return Refused(f"the body must be a JSON object: {words}", None, "invalid_json")
    return Refused(f"{param}: {words}", param)


def check_text(value: Any, param: str) -> str:
    """A string that can be encoded: JSON lets lone surrogates through. Raises Refused."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{param}: half of a surrogate pair is no character", param) from None
    return str(value)
