"""Checks the queries for capabilities that clients write, and says which handlers satisfy them.

A query is a map from attributes to what they must be: a scalar, a list of scalars of which any will do, or an object of
operators that all hold: gt, gte, lt, lte, ne, prefix, glob, exists, and text, which is a value as headers write it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import Scalar
from corosrv.workers.dispatch.conditions import MAX_TEXT, Condition, parse_conditions

MAX_ATTRIBUTES = 32  # of a query, and as many preferences
MAX_NAME = 128  # characters of an attribute's name
_PREFIXES = ("x-capability-", "x-cap-")
_SIGNS = (">=", "<=", ">", "<", "=")  # of a preference; the longer ones first


@dataclass(frozen=True, slots=True)
class CapabilityQuery:
    """Holds a checked query."""

    conditions: Mapping[str, tuple[Condition, ...]]

    def matches(self, capability: Mapping[str, Scalar], is_fuzzy: bool = False) -> bool:
        """Returns whether a capability satisfies every condition. Attributes that the query lacks do not matter."""
        return all(
            condition.holds(capability.get(name), is_fuzzy)
            for name, conditions in self.conditions.items()
            for condition in conditions
        )

    def count_extra(self, capability: Mapping[str, Scalar]) -> int:
        """Counts the attributes that the query says nothing of: the fewer, the more specific is the match."""
        return sum(name not in self.conditions for name in capability)


@dataclass(frozen=True, slots=True)
class Preference:
    """Adds its weight to a match that satisfies it."""

    name: str
    condition: Condition
    weight: float


def parse_query(query: Mapping[str, object]) -> CapabilityQuery:
    """Checks a query. Raises Refused for an empty one, and for what cannot be compared."""
    if not 1 <= len(query) <= MAX_ATTRIBUTES:
        problem = "is empty" if not query else f"has more than {MAX_ATTRIBUTES} attributes"
        raise Refused(f"capability: the query {problem}", "capability")
    return CapabilityQuery({_name(name): parse_conditions(name, predicate) for name, predicate in query.items()})


def parse_preferences(prefer: Mapping[str, float]) -> tuple[Preference, ...]:
    """Checks preferences: `tier=small`, `ctx>=4096` or a bare `gpu`, and the weight of each. Raises Refused."""
    if len(prefer) > MAX_ATTRIBUTES:
        raise Refused(f"prefer: more than {MAX_ATTRIBUTES} preferences", "prefer")
    return tuple(_preference(text, weight) for text, weight in prefer.items())


def _preference(text: str, weight: object) -> Preference:
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not math.isfinite(weight):
        raise Refused(f"prefer: the weight of {text[:80]!r} is no finite number", "prefer")
    if len(text) > MAX_TEXT:
        raise Refused(f"prefer: a preference has more than {MAX_TEXT} characters", "prefer")
    places = [(text.find(sign), sign) for sign in _SIGNS if sign in text]
    if not places:
        return Preference(_name(text), Condition("exists", True), weight)
    # The first sign ends the name; of >= and > at one place it is the longer.
    place, sign = min(places, key=lambda place: (place[0], -len(place[1])))
    value = text[place + len(sign) :]
    return Preference(_name(text[:place]), Condition("text", value if sign == "=" else sign + value), weight)


def weigh(preferences: Iterable[Preference], capability: Mapping[str, Scalar]) -> float:
    """Sums the weights of the preferences that a capability satisfies."""
    return math.fsum(item.weight for item in preferences if item.condition.holds(capability.get(item.name)))


def header_query(headers: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Returns the query that headers, or metadata, named `X-Capability-<Key>` or `X-Cap-<Key>` make; empty without any.

    Their values are read as the type that the attribute has, so `>=4096` is a range of numbers. Raises Refused for a
    key that comes twice.
    """
    query: dict[str, object] = {}
    for header, value in headers:
        if (name := _header_key(header)) is None:
            continue
        if name in query:
            raise Refused(f"capability: the attribute {name[:80]!r} is named by two headers", f"capability.{name[:80]}")
        query[name] = {"text": value.strip()}
    return query


def _header_key(header: str) -> str | None:
    name = header.lower()
    for prefix in _PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return name.removeprefix(prefix).replace("-", "_")
    return None


def _name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise Refused(f"capability: an attribute's name is a text of 1 to {MAX_NAME} characters", "capability")
    return name
