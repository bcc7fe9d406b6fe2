"""Reads what a request's header fields ask for."""

from __future__ import annotations

from werkzeug.datastructures import Headers, MIMEAccept
from werkzeug.http import parse_accept_header, parse_list_header

_STREAM = "text/event-stream"
_JSON = "application/json"
_TRACE = ("traceparent", "tracestate")


def wants_async(prefer: str) -> bool:
    """Returns whether the `Prefer` field has respond-async, with any parameters, among others or alone."""
    if "respond-async" not in prefer.lower():
        return False
    names = (preference.partition(";")[0].partition("=")[0] for preference in parse_list_header(prefer))
    return any(name.strip().lower() == "respond-async" for name in names)


def wants_stream(accept: str) -> bool:
    """Returns whether the `Accept` field names event streams and does not prefer JSON."""
    if _STREAM not in accept.lower():
        return False
    accepted = parse_accept_header(accept, MIMEAccept)
    quality = max(
        (quality for kind, quality in accepted if kind.partition(";")[0].strip().lower() == _STREAM), default=0
    )
    return quality > 0 and quality >= accepted.quality(_JSON)


def is_json(content_type: str) -> bool:
    """Returns whether a body of this type is read as JSON: application/json, or a type that ends in +json."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == _JSON or (kind.startswith("application/") and kind.endswith("+json"))


def trace(headers: Headers) -> dict[str, str]:
    """Returns the fields that link this request to a trace, as they were sent."""
    return {name: headers[name] for name in _TRACE if name in headers}


def last_event_id(headers: Headers) -> int | None:
    """Returns the number of the last event that the client has; None if the field holds no such number."""
    text = headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
