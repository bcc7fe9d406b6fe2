"""Parses create requests: everything of the body but `input`, the id, and header fields. Reports all faults at once."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from werkzeug.datastructures import Headers, MIMEAccept
from werkzeug.http import parse_accept_header, parse_list_header

from corosrv.base.errors import InvalidInput
from corosrv.base.outgoing import Destinations, is_http_url
from corosrv.dialects.predictions.prediction import Change
from corosrv.dialects.predictions.webhooks import Receiver

_ALLOWED = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}")


def is_id(text: str) -> bool:
    """Returns whether a client may choose this id."""
    return _ALLOWED.fullmatch(text) is not None


def new_id() -> str:
    """Makes an id of 26 letters and digits that nobody can guess."""
    return base64.b32encode(uuid.uuid4().bytes).decode().rstrip("=").lower()


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


def trace_headers(headers: Headers) -> dict[str, str]:
    """Returns the fields that link this request to a trace, as they were sent."""
    return {name: headers[name] for name in _TRACE if name in headers}


def last_event_id(headers: Headers) -> int | None:
    """Returns the number of the last event that the client has; None if the field holds no such number."""
    text = headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


_EVENTS = ", ".join(change.value for change in Change)
_MOST_EVENTS = 64  # names, each of which may be at fault


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCall:
    """A create request, checked but for its `input`. `is_put`: it runs once, however often it is sent."""

    input: Any = field(default_factory=dict)  # as sent; the schema checks it later
    id: str | None = None
    is_put: bool = False
    context: Mapping[str, str] = field(default_factory=dict)
    receiver: Receiver | None = None
    is_async: bool = False
    is_stream: bool = False
    n_bytes: int = 0  # of the body


class _BodyFaults:
    """Faults of one body, in the order in which they were found."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def add(self, message: str, *place: str | int) -> None:
        self.errors.append({"loc": ["body", *place], "msg": message, "type": "value_error"})


def call(
    body: Any,
    n_bytes: int,
    path_id: str | None,
    fields: Headers,
    destinations: Destinations | None = None,
    came_by_loopback: bool = False,
) -> PredictionCall:
    """Makes a call of a decoded body.

    `n_bytes`: the body's size; `path_id`: the id in the path of a PUT; `fields`: the request's header; `destinations`:
    where webhooks may go; `came_by_loopback`: the client is on this machine, so its webhooks may stay on it.

    Raises InvalidInput.
    """
    faults = _BodyFaults()
    if not isinstance(body, dict):
        faults.add("the body must be an object")
        raise InvalidInput(faults.errors)
    members = {name: value for name, value in body.items() if value is not None}  # null equals absent
    result = PredictionCall(
        input=members.get("input", {}),
        id=_id(members, path_id, faults),
        is_put=path_id is not None,
        context=_context(members, faults),
        receiver=_receiver(members, trace_headers(fields), destinations or Destinations(), came_by_loopback, faults),
        is_async=wants_async(fields.get("Prefer", "")),
        is_stream=wants_stream(fields.get("Accept", "")),
        n_bytes=n_bytes,
    )
    if faults.errors:
        raise InvalidInput(faults.errors)
    return result


def _id(members: Mapping[str, Any], path_id: str | None, faults: _BodyFaults) -> str | None:
    words = "must be 1 to 128 characters of A-Z a-z 0-9 . _ ~ -, the first of them no dot"
    if path_id is not None and not is_id(path_id):
        faults.errors.append({"loc": ["path", "prediction_id"], "msg": words, "type": "value_error"})
    id = _typed(members, "id", str, "must be a string", faults)
    if id is not None and not is_id(id):
        faults.add(words, "id")
    elif id is not None and path_id is not None and id != path_id:
        faults.add("the id in the body and the id in the path must match", "id")
    return path_id if path_id is not None else id


def _context(members: Mapping[str, Any], faults: _BodyFaults) -> dict[str, str]:
    context: dict[str, Any] = _typed(members, "context", dict, "must be an object of strings", faults) or {}
    for name, value in context.items():
        if not isinstance(value, str):
            faults.add("must be a string", "context", name)
    return context


def _receiver(
    members: Mapping[str, Any],
    trace: Mapping[str, str],
    destinations: Destinations,
    to_loopback: bool,
    faults: _BodyFaults,
) -> Receiver | None:
    url = _typed(members, "webhook", str, "must be a string", faults)
    if url is not None and not is_http_url(url):
        faults.add("must be an absolute http or https URL", "webhook")
    elif url is not None and (fault := destinations.fault_of_url(url, to_loopback=to_loopback)):
        faults.add(fault, "webhook")
    events = _events(members, faults)
    return None if url is None else Receiver(url, events, trace, to_loopback)


def _events(members: Mapping[str, Any], faults: _BodyFaults) -> frozenset[Change]:
    place = "webhook_events_filter"
    names = _typed(members, place, list, f"must be a list of {_EVENTS}", faults)
    if names is None:
        return frozenset(Change)
    changes = {change.value: change for change in Change}
    if len(names) > _MOST_EVENTS:
        faults.add(f"must have at most {_MOST_EVENTS} names, not {len(names)}", place)
        return frozenset()
    for number, name in enumerate(names):
        if not isinstance(name, str) or name not in changes:
            faults.add(f"must be one of {_EVENTS}", place, number)
    return frozenset(changes[name] for name in names if isinstance(name, str) and name in changes)


def _typed(members: Mapping[str, Any], name: str, kind: type, words: str, faults: _BodyFaults) -> Any:
    """Returns a member if it is of this type; otherwise None, and a fault if it was sent."""
    value = members.get(name)
    if value is None or isinstance(value, kind):
        return value
    faults.add(words, name)
    return None
