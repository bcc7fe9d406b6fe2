"""Reads how a request is to be treated: its terms from headers (in gRPC, metadata); and finds what may be misspelt.

Terms say who asks, how urgent it is, and how long the answer is of use. Whoever sends such a header means something by
it, so one that is empty or out of range is refused, in every protocol. No time at all, `0`, is out of range: a client
whose time is over wants no call without a limit.

A path that leads nowhere is answered with the route that is most like it. Unknown fields of a body are named in a
header of the answer: a misspelt one would be ignored in silence.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any

import msgspec
from flask import Response, g, request
from msgspec import Meta
from werkzeug.routing import Map, Rule

from corosrv.contracts.jobs.terms import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    MAX_TIMEOUT_MS,
    PRIORITY,
    TIMEOUT,
    TRACE,
    Flow,
    Terms,
    parse_priority,
    parse_timeout,
)
from corosrv.contracts.settings import TIERS
from corosrv.web.http.lean_flask import Visit, current
from corosrv.web.key_account import KeyAccount

log = logging.getLogger("corosrv.http")

# In the WSGI environment of a batch's line, which this process sends itself: its owner.
FROM_BATCH = "corosrv.from_batch"
# There, too, where another worker process of this server sends a request on that it has counted itself.
FROM_WORKER = "corosrv.from_worker"
# And the caller of such a request, if it does not carry the caller's key.
FROM_CALLER = "corosrv.from_caller"


class QueueHeaders(msgspec.Struct):
    """Headers that say how long a request may wait, and who goes before it; see request_terms."""

    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=LAST_PRIORITY,
            description="1 is first in the queue, 9 last; 0 is 5. The body's `priority` goes before it",
        ),
    ] = msgspec.field(name=PRIORITY, default=0)
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_TIMEOUT_MS,
            description="Milliseconds after which the answer is of no use: the request ends with 503 if it waits for "
            "a slot by then, else with 504, or the stream with an error",
        ),
    ] = msgspec.field(name=TIMEOUT, default=MAX_TIMEOUT_MS)


def request_terms(priority: int | None = None, timeout_s: float | None = None) -> Terms:
    """Returns the terms of the request at hand.

    `priority`: the body's, which goes before the header's; 0 and None say nothing. `timeout_s`: seconds that the body
    gives the request; the earlier end counts. Raises Refused, which names the header.
    """
    notes, environ = current(g), current(request).environ
    visit = Visit(
        notes.get("corosrv_request_id", ""),
        notes.get("corosrv_began") or monotonic(),
        notes.get("corosrv_caller", ""),
        notes.get("corosrv_account"),
        notes.get("corosrv_flow"),
    )
    terms = visit_terms(visit, environ, priority, timeout_s)
    if FROM_BATCH in environ:  # as another caller: the tier is one of all that a caller runs
        return replace(terms, tier=TIERS, caller=f"{terms.caller} batch")
    return terms


def visit_terms(
    visit: Visit, environ: Mapping[str, Any], priority: int | None = None, timeout_s: float | None = None
) -> Terms:
    """Returns the terms of a visit; see request_terms."""
    timeout_ms = environ.get("HTTP_X_REQUEST_TIMEOUT_MS")
    timeout = None if timeout_ms is None else parse_timeout(timeout_ms)
    if timeout_s is not None:
        timeout = timeout_s if timeout is None else min(timeout, timeout_s)
    if not priority and (header := environ.get("HTTP_X_PRIORITY")) is not None:
        priority = parse_priority(header)
    terms = Terms(
        caller=visit.caller,
        request_id=visit.request_id,
        priority=priority or DEFAULT_PRIORITY,
        deadline=None if timeout is None else visit.began + timeout,
        trace=environ.get(TRACE),
    )
    return terms if visit.account is None and visit.flow is None else placed(terms, visit.account, visit.flow)


def placed(terms: Terms, account: KeyAccount | None, flow: Flow | None) -> Terms:
    """Returns the terms with what the caller's key and the gateway add."""
    if account is not None:
        terms = account.terms(terms)
    return terms if flow is None else flow.place(terms)


def arrival() -> float:
    """Returns when the request at hand arrived, of time.monotonic(): its deadline counts from there."""
    return float(current(g).get("corosrv_began") or monotonic())


_LONGEST = 128  # characters of a path that is compared: each comparison takes its length times a route's
_LIKENESS = 0.8
_DOUBLED = re.compile(r"^(/[^/]+)\1+(?=/)")  # as in /v1/v1/models, of a base URL that ends in /v1
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def nearest_route(routes: Map, method: str, path: str) -> str:
    """Returns the method and path of the route that is most like a path; empty if none is much like it."""
    if len(path) > _LONGEST:
        return ""
    wanted = _DOUBLED.sub(r"\1", re.sub("/{2,}", "/", path)).rstrip("/")
    candidates: dict[str, Rule] = {}
    for rule in routes.iter_rules():
        filled, literal, rest = _filled(rule.rule, wanted)
        if literal != filled and difflib.SequenceMatcher(None, literal, rest).ratio() < _LIKENESS:
            continue  # what is alike is what stands where the rule takes anything
        if filled not in candidates or method in (rule.methods or ()):
            candidates[filled] = rule
    found = difflib.get_close_matches(wanted, candidates, n=1, cutoff=_LIKENESS)
    if not found:
        return ""
    methods = candidates[found[0]].methods or set()
    return f"{method if method in methods else next(_first(methods))} {found[0]}"


def _first(methods: set[str]) -> Iterator[str]:
    yield from (known for known in _METHODS if known in methods)
    yield "OPTIONS"


def _filled(rule: str, path: str) -> tuple[str, str, str]:
    """Returns a rule with the path's own texts where it has arguments, in all segments that both have.

    Then the rule without these segments, and the path without them.
    """
    segments, given = rule.split("/"), path.split("/")
    arguments = [place for place, segment in enumerate(segments) if segment.startswith("<") and place < len(given)]
    literals = [segment for place, segment in enumerate(segments) if place not in arguments]
    rest = [segment for place, segment in enumerate(given) if place not in arguments]
    for place in arguments:
        segments[place] = given[place]
    return "/".join(segments), "/".join(literals), "/".join(rest)


HEADER = "X-Corosrv-Ignored"

_MOST_NAMES = 16  # in one header
_MOST_CHARACTERS = 64  # of a name
_MOST_LOGGED = 200  # names: whoever invents them must not fill the log
_NOT_SHOWN = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_NOTE = "corosrv_ignored"

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class IgnoredFields:
    """The unknown fields of bodies: named in a header of the answer, and each once in the log."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, body: bytes, kind: Any) -> None:
        """Looks for members of the current request's body that its type does not know.

        `body`: JSON that was decoded to `kind` already. Types that are no Struct take any member.
        """
        known = _names_of(kind)
        if known is None:
            return
        members = _members.decode(body.removeprefix(b"\xef\xbb\xbf"))
        if members.keys() <= known:
            return
        # A null asks for nothing.
        unknown = [name for name, value in members.items() if name not in known and bytes(value) != b"null"]
        if unknown:
            self.tell(unknown, known)

    def tell(self, names: list[str], known_names: frozenset[str] = frozenset()) -> None:
        """Names fields of the current request's body that mean nothing, besides those that were named before."""
        notes = current(g)
        earlier = notes.get(_NOTE)
        setattr(notes, _NOTE, _header(names) if earlier is None else f"{earlier}, {_header(names)}")
        self._log(names, known_names)

    def _log(self, unknown: Iterable[str], known_names: frozenset[str]) -> None:
        for shown in map(_printable, unknown):
            if shown in self._logged or len(self._logged) >= _MOST_LOGGED:
                continue
            self._logged.add(shown)
            nearest = difflib.get_close_matches(shown, known_names, n=1, cutoff=0.8)
            meant = f" (did its client mean {nearest[0]}?)" if nearest else ""
            log.warning("a request has a field %s, which is unknown here and ignored%s; logged once", shown, meant)


def add_header(response: Response) -> None:
    """Names the ignored fields of the current request's body in its answer, if there are any."""
    if value := current(g).pop(_NOTE, None):
        response.headers[HEADER] = value


@functools.cache  # the types of bodies are few
def _names_of(kind: Any) -> frozenset[str] | None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _header(names: list[str]) -> str:
    shown = ", ".join(map(_printable, names[:_MOST_NAMES]))
    return shown if len(names) <= _MOST_NAMES else f"{shown}, ..."


def _printable(name: str) -> str:
    return _NOT_SHOWN.sub("?", name[:_MOST_CHARACTERS])
