"""Converts a number's schema to GBNF: its bounds, and integer multiples."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from corosrv.formats.structured.schema import ranges
from corosrv.formats.structured.schema.check import is_whole
from corosrv.formats.structured.schema.merge import Impossible, Schema
from corosrv.formats.structured.schema.ranges import Bound

_MOST_MULTIPLES = 1_000


class Unsupported(Exception):
    """The schema asks for numbers that cannot be enforced; says which can. A signal to types, which refuse it."""


def integer(schema: Schema, digits: int) -> str | None:
    """Returns GBNF for the integers of a schema, or None if it allows all. An open end stops at `digits` digits.

    Raises Impossible where no integer is valid, and Unsupported.
    """
    least, most = _bounds(schema)
    divisor = _multiple_of(schema)
    if least is None and most is None and divisor == 1:
        return None
    limit = 10**digits - 1
    low = -limit if least is None else _inwards(least, ROUND_CEILING)
    high = limit if most is None else _inwards(most, ROUND_FLOOR)
    if least is None:
        low = min(low, high - limit)
    if most is None:
        high = max(high, low + limit)
    if divisor != 1:
        return _multiples(low, high, divisor)
    body = ranges.integers(low, high)
    if body is None:
        raise Impossible(f"no integer lies between {low} and {high}")
    return body


def number(schema: Schema, digits: int) -> str | None:
    """Returns the same as integer(), with fractions of up to `digits` digits; multiples are integers."""
    if "multipleOf" in schema:
        return integer(schema, digits)
    least, most = _bounds(schema)
    if least is None and most is None:
        return None
    body = ranges.decimals(least, most, digits)
    if body is None:
        raise Impossible("no number lies within the bounds")
    return body


def _multiple_of(schema: Schema) -> int:
    value = schema.get("multipleOf", 1)
    if not is_whole(value):
        raise Unsupported("'multipleOf' is only supported where it is a whole number")
    return int(value)


def _multiples(low: int, high: int, divisor: int) -> str:
    multiples = range(-(-low // divisor) * divisor, high + 1, divisor)
    if len(multiples) > _MOST_MULTIPLES:
        raise Unsupported(f"'multipleOf' is only supported where bounds leave at most {_MOST_MULTIPLES} values")
    if not multiples:
        raise Impossible(f"no multiple of {divisor} lies between {low} and {high}")
    return " | ".join(f'"{value}"' for value in multiples)


def _bounds(schema: Schema) -> tuple[Bound | None, Bound | None]:
    """Returns the larger lower bound and the smaller upper bound; of two equal ones the exclusive one."""
    least = [_bound(schema[word], "exclusive" in word) for word in ("minimum", "exclusiveMinimum") if word in schema]
    most = [_bound(schema[word], "exclusive" in word) for word in ("maximum", "exclusiveMaximum") if word in schema]
    return (
        max(least, key=lambda bound: (bound.value, bound.is_exclusive), default=None),
        min(most, key=lambda bound: (bound.value, not bound.is_exclusive), default=None),
    )


def _bound(value: float, is_exclusive: bool) -> Bound:
    # A float's shortest decimal is the number that its author wrote.
    return Bound(Decimal(repr(value) if isinstance(value, float) else value), is_exclusive)


def _inwards(bound: Bound, rounding: str) -> int:
    rounded = int(bound.value.to_integral_value(rounding=rounding))
    if rounded == bound.value and bound.is_exclusive:
        rounded += 1 if rounding == ROUND_CEILING else -1
    return rounded
