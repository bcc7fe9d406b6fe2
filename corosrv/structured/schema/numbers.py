"""A number's schema as GBNF: its bounds, and whole multiples."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from corosrv.structured.schema import ranges
from corosrv.structured.schema.check import is_whole
from corosrv.structured.schema.merge import Impossible, Schema
from corosrv.structured.schema.ranges import Bound

_MOST_MULTIPLES = 1_000


class Unsupported(Exception):
    """The schema asks for numbers that cannot be enforced; says which can. A signal to types, which refuse it."""


def integer(schema: Schema, digits: int) -> str | None:
    """None: any integer will do. Where an end is open, numbers go `digits` digits far.

    Raises Impossible where no integer is valid, and Unsupported.
    """
    least, most = _bounds(schema)
    of = _multiple_of(schema)
    if least is None and most is None and of == 1:
        return None
    limit = 10**digits - 1
    low = -limit if least is None else _inwards(least, ROUND_CEILING)
    high = limit if most is None else _inwards(most, ROUND_FLOOR)
    if least is None:
        low = min(low, high - limit)
    if most is None:
        high = max(high, low + limit)
    if of != 1:
        return _multiples(low, high, of)
    found = ranges.integers(low, high)
    if found is None:
        raise Impossible(f"no integer lies between {low} and {high}")
    return found


def number(schema: Schema, digits: int) -> str | None:
    """As integer(), with fractions of up to `digits` digits; multiples are whole."""
    if "multipleOf" in schema:
        return integer(schema, digits)
    least, most = _bounds(schema)
    if least is None and most is None:
        return None
    found = ranges.decimals(least, most, digits)
    if found is None:
        raise Impossible("no number lies within the bounds")
    return found


def _multiple_of(schema: Schema) -> int:
    value = schema.get("multipleOf", 1)
    if not is_whole(value):
        raise Unsupported("'multipleOf' is only supported where it is a whole number")
    return int(value)


def _multiples(low: int, high: int, of: int) -> str:
    found = range(-(-low // of) * of, high + 1, of)
    if len(found) > _MOST_MULTIPLES:
        raise Unsupported(f"'multipleOf' is only supported where bounds leave at most {_MOST_MULTIPLES} values")
    if not found:
        raise Impossible(f"no multiple of {of} lies between {low} and {high}")
    return " | ".join(f'"{value}"' for value in found)


def _bounds(schema: Schema) -> tuple[Bound | None, Bound | None]:
    """The larger of two leasts, the smaller of two mosts; where they are equal, the one that excludes."""
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
    whole = int(bound.value.to_integral_value(rounding=rounding))
    if whole == bound.value and bound.is_exclusive:
        whole += 1 if rounding == ROUND_CEILING else -1
    return whole
