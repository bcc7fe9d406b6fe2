"""Checks and tests the conditions that a query sets on one attribute of a capability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import Scalar
from corosrv.workers.dispatch.glob import check_glob, matches_glob

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
_SIGNS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}  # as headers write them; the longer ones first


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
    for sign, operator in _SIGNS.items():
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
