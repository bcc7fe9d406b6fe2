"""Finds the route that a client may have meant by a path that leads nowhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from werkzeug.routing import Map, Rule

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
        if (filled := _filled(rule.rule, wanted)) not in candidates or method in (rule.methods or ()):
            candidates[filled] = rule
    found = difflib.get_close_matches(wanted, candidates, n=1, cutoff=_LIKENESS)
    if not found:
        return ""
    methods = candidates[found[0]].methods or set()
    return f"{method if method in methods else next(_first(methods))} {found[0]}"


def _first(methods: set[str]) -> Iterator[str]:
    yield from (known for known in _METHODS if known in methods)
    yield "OPTIONS"


def _filled(rule: str, path: str) -> str:
    """Returns a rule with the path's own texts where it has arguments, in all segments that both have."""
    segments, given = rule.split("/"), path.split("/")
    for place, segment in enumerate(segments):
        if segment.startswith("<") and place < len(given):
            segments[place] = given[place]
    return "/".join(segments)
