"""Checks the queries for capabilities that clients write, and says which handlers satisfy them.

A query is a map from attributes to what they must be: a scalar, a list of scalars of which any will do, or an object of
operators that all hold: gt, gte, lt, lte, ne, prefix, glob, exists, and text, which is a value as headers write it.
Glob patterns are matched in time that grows with the product of both lengths at worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import Scalar

MAX_LENGTH = 256  # of a pattern


def check_glob(pattern: str) -> str | None:
    """Returns what is wrong with a pattern, or None. `*` stands for any characters and `?` for one."""
    if len(pattern) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    if "[" in pattern:
        return "has a '[': only * and ? stand for other characters"
    return None


def matches_glob(pattern: str, text: str) -> bool:
    """Returns whether all of the text is what the pattern describes.

    Each piece between two stars is searched from where the piece before it ended, and the first place is the right
    one: nothing is tried twice, so no pattern makes this slow.
    """
    first, *middle = pattern.split("*")
    if not _begins(first, text, 0):
        return False
    if not middle:
        return len(first) == len(text)
    start = len(first)
    last = middle.pop()
    for piece in middle:
        start = _search(piece, text, start)
        if start < 0:
            return False
    end = len(text) - len(last)
    return end >= start and _begins(last, text, end)


def _search(piece: str, text: str, start: int) -> int:
    """Returns the end of the first place from `start` on where the piece is; -1 if there is none."""
    if "?" not in piece:
        place = text.find(piece, start)
        return -1 if place < 0 else place + len(piece)
    for place in range(start, len(text) - len(piece) + 1):
        if _begins(piece, text, place):
            return place + len(piece)
    return -1


def _begins(piece: str, text: str, start: int) -> bool:
    if "?" not in piece:
        return text.startswith(piece, start)
    if start + len(piece) > len(text):
        return False
    return all(mark in ("?", character) for mark, character in zip(piece, text[start:], strict=False))


MAX_TEXT = 1024  # characters of a value
MAX_VALUES = 64  # of a list
MAX_DIGITS = 400  # of a number: more than any float has

_FOLDED = str.maketrans("", "", "-_. ")
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "gte": lambda value, limit: value >= limit,
    "lte": lambda value, limit: value <= limit,
    "gt": lambda value, limit: value > limit,
    "lt": lambda value, limit: value < limit,
}
_SUFFIXES = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}  # as headers write them; the longer ones first


@dataclass(frozen=True, slots=True)
class Condition:
    """Says one thing that an attribute must be. `operand`: the value or values that the operator compares with."""

    operator: str
    operand: Scalar | tuple[Scalar, ...]

    def holds(self, value: Scalar | None, is_fuzzy: bool = False) -> bool:
        """Returns whether an attribute satisfies this; its value is None if the capability lacks it."""
        if self.operator == "exists":
            return (value is not None) is self.operand
        if value is None:
            return self.operator == "ne"
        return _HOLDS[self.operator](value, self.operand, is_fuzzy)


def is_equal(value: Scalar, other: Scalar, is_fuzzy: bool = False) -> bool:
    """Compares type-strictly: true is not 1 and "8" is not 8, but 8 is 8.0. Fuzzy: without case and separators."""
    if isinstance(value, str) and isinstance(other, str):
        return value == other or (is_fuzzy and _fold(value) == _fold(other))
    return type_word(value) == type_word(other) and value == other


def type_word(value: object) -> str:
    """Returns `boolean`, `number`, `string`, or an empty text for anything that is no attribute's value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else ""


def _fold(text: str) -> str:
    return text.casefold().translate(_FOLDED)


def parse_conditions(name: str, predicate: object) -> tuple[Condition, ...]:
    """Reads what a query says of the attribute `name`. Raises Refused."""
    if isinstance(predicate, Mapping):
        if not predicate:
            raise _refused(name, "is an empty object, where an operator belongs")
        return tuple(_operation(name, operator, operand) for operator, operand in predicate.items())
    if isinstance(predicate, (list, tuple)):
        if not 1 <= len(predicate) <= MAX_VALUES:
            raise _refused(name, f"lists {len(predicate)} values, where 1 to {MAX_VALUES} are allowed")
        return (Condition("in", tuple(_scalar(name, value) for value in predicate)),)
    return (Condition("is", _scalar(name, predicate)),)


def _operation(name: str, operator: object, operand: object) -> Condition:
    if not isinstance(operator, str) or operator not in _OPERANDS:
        raise _refused(name, f"has the unknown operator {str(operator)[:40]!r}; known are {', '.join(_OPERANDS)}")
    value = _scalar(name, operand)
    needs = _OPERANDS[operator]
    if needs and type_word(value) != needs:
        raise _refused(name, f"needs a {needs} for {operator}, not {str(operand)[:40]!r}")
    if operator == "glob" and (problem := check_glob(str(value))):
        raise _refused(name, f"has a pattern that {problem}")
    return Condition(operator, value)


def _scalar(name: str, value: object) -> Scalar:
    if not isinstance(value, (str, int, float)):
        raise _refused(name, "must be a string, a number, a boolean, a list of them, or an object of operators")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise _refused(name, f"is a text of more than {MAX_TEXT} characters")
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(name, "is no finite number")
    return value


def _refused(name: str, problem: str) -> Refused:
    return Refused(f"capability: the attribute {name[:80]!r} {problem}", f"capability.{name[:80]}")


def _holds_text(value: Scalar, text: object, is_fuzzy: bool) -> bool:
    """Reads a text as the type that the attribute has; before a number it may have >=, <=, > or <."""
    assert isinstance(text, str)
    if isinstance(value, str):
        return is_equal(value, text, is_fuzzy)
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    for sign, operator in _SUFFIXES.items():
        if text.startswith(sign):
            limit = parse_number(text.removeprefix(sign))
            return limit is not None and _COMPARISONS[operator](value, limit)
    number = parse_number(text)
    return number is not None and value == number


def parse_number(text: str) -> int | float | None:
    """Returns the finite decimal number that a text is, or None."""
    if len(text) > MAX_DIGITS or not text.isascii() or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _holds_number(operator: str) -> Callable[[Scalar, object, bool], bool]:
    compare = _COMPARISONS[operator]

    def holds(value: Scalar, limit: object, is_fuzzy: bool) -> bool:
        return type_word(value) == "number" and compare(value, limit)  # type: ignore[arg-type]  # both are numbers

    return holds


# What each operator needs beside it; an empty text: any scalar.
_OPERANDS: dict[str, str] = {
    "gt": "number",
    "gte": "number",
    "lt": "number",
    "lte": "number",
    "ne": "",
    "prefix": "string",
    "glob": "string",
    "exists": "boolean",
    "text": "string",
}
_HOLDS: dict[str, Callable[[Scalar, object, bool], bool]] = {
    "is": lambda value, operand, is_fuzzy: is_equal(value, operand, is_fuzzy),  # type: ignore[arg-type]
    "in": lambda value, operands, is_fuzzy: any(is_equal(value, operand, is_fuzzy) for operand in operands),  # type: ignore[attr-defined]
    "ne": lambda value, operand, is_fuzzy: not is_equal(value, operand),  # type: ignore[arg-type]
    "prefix": lambda value, operand, is_fuzzy: isinstance(value, str) and value.startswith(str(operand)),
    "glob": lambda value, operand, is_fuzzy: isinstance(value, str) and matches_glob(str(operand), value),
    "text": _holds_text,
    **{operator: _holds_number(operator) for operator in _COMPARISONS},
}


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
