"""Converts a number's schema to GBNF over its digits: its bounds, and integer multiples."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from corosrv.formats.structured.gbnf import either, literal, repeated, sequence
from corosrv.formats.structured.schema.check import is_whole
from corosrv.formats.structured.schema.merge import Impossible, Schema


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Decimal
    is_exclusive: bool = False


def integers(least: int, most: int) -> str | None:
    """Returns GBNF for all integers from `least` to `most`, without leading zeros or -0; None when there are none."""
    alternatives = []
    if least < 0 <= most + 1 or (most < 0 and least <= most):
        alternatives += [sequence('"-"', either(_naturals(max(1, -most), -least)))]
    if most >= 0 and least <= most:
        alternatives += _naturals(max(0, least), most)
    return either(alternatives) if alternatives else None


def _naturals(least: int, most: int) -> list[str]:
    """Returns alternatives for the numbers from `least` to `most`, of which the first is not negative."""
    alternatives = []
    size = len(str(least))
    last = len(str(most))
    if size == last:
        return _same_size(str(least), str(most))
    alternatives += _same_size(str(least), "9" * size)
    if last - size > 1:
        alternatives.append(sequence("[1-9]", repeated("[0-9]", size, last - 2)))
    return alternatives + _same_size("1" + "0" * (last - 1), str(most))


def _same_size(least: str, most: str) -> list[str]:
    """Returns alternatives for the digit strings of this length from `least` to `most`."""
    n_shared = next((i for i, (a, b) in enumerate(zip(least, most, strict=True)) if a != b), len(least))
    shared = literal(least[:n_shared]) if n_shared else ""
    if n_shared == len(least):
        return [shared]
    low, high = least[n_shared + 1 :], most[n_shared + 1 :]
    first, last = int(least[n_shared]), int(most[n_shared])
    alternatives = []
    if low.strip("0"):
        alternatives += [sequence(literal(str(first)), suffix) for suffix in _at_least(low)]
        first += 1
    ends = []
    if high.strip("9"):
        ends = [sequence(literal(str(last)), suffix) for suffix in _at_most(high)]
        last -= 1
    if first <= last:
        alternatives.append(sequence(_digit(first, last), repeated("[0-9]", len(low), len(low))))
    return [sequence(shared, either(alternatives + ends))]


def _digit(first: int, last: int) -> str:
    return f"[{first}-{last}]" if first < last else f'"{first}"'


def _at_least(digits: str) -> list[str]:
    """Returns alternatives for the digit strings of this length that are not below it."""
    alternatives = []
    for i, digit in enumerate(digits):
        if digit < "9":
            n_left = len(digits) - i - 1
            above = _digit(int(digit) + 1, 9)
            alternatives.append(sequence(literal(digits[:i]) if i else "", above, repeated("[0-9]", n_left, n_left)))
    return [*alternatives, literal(digits)]


def _at_most(digits: str) -> list[str]:
    alternatives = []
    for i, digit in enumerate(digits):
        if digit > "0":
            n_left = len(digits) - i - 1
            below = _digit(0, int(digit) - 1)
            alternatives.append(sequence(literal(digits[:i]) if i else "", below, repeated("[0-9]", n_left, n_left)))
    return [*alternatives, literal(digits)]


_OPEN_DIGITS = 9


def decimals(least: Bound | None, most: Bound | None, digits: int) -> str | None:
    """Returns GBNF for the numbers within bounds, of at most `digits` digits, no exponent; None when there are none.

    So many digits are told apart by a double too, so that whoever parses the number finds it within the bounds. Bounds
    with more digits are rounded inwards.
    """
    # Where one end is open it is far off, but leaves digits for behind the point.
    n_open = max([len(str(int(abs(bound.value)))) for bound in (least, most) if bound], default=0)
    limit = Decimal(10) ** min(digits, max(n_open, _OPEN_DIGITS)) - 1
    low = _rounded(least or Bound(-limit), ROUND_CEILING, digits)
    high = _rounded(most or Bound(limit), ROUND_FLOOR, digits)
    n_whole = max(len(str(int(abs(bound.value)))) for bound in (low, high))
    n_fraction = max(0, digits - n_whole)
    low, high = _to_places(low, n_fraction, ROUND_CEILING), _to_places(high, n_fraction, ROUND_FLOOR)
    alternatives = []
    zero = Bound(Decimal(0))
    if low.value < 0:
        nearest = Bound(-high.value, high.is_exclusive) if high.value < 0 else Bound(Decimal(0), True)
        alternatives += [
            sequence('"-"', item) for item in _magnitudes(nearest, Bound(-low.value, low.is_exclusive), n_fraction)
        ]
    if high.value >= 0:
        alternatives += _magnitudes(low if low.value >= 0 else zero, high, n_fraction)
    return either(alternatives) if alternatives else None


def _rounded(bound: Bound, rounding: str, digits: int) -> Bound:
    value = Context(prec=digits, rounding=rounding).plus(bound.value)
    return bound if value == bound.value else Bound(value)


def _to_places(bound: Bound, places: int, rounding: str) -> Bound:
    value = bound.value.quantize(Decimal(1).scaleb(-places), rounding=rounding, context=Context(prec=400))
    return bound if value == bound.value else Bound(value)


def _magnitudes(low: Bound, high: Bound, n_fraction: int) -> list[str]:
    """Returns alternatives for numbers between two that are not negative, with at most `n_fraction` places."""
    if low.value > high.value or (low.value == high.value and (low.is_exclusive or high.is_exclusive)):
        return []
    low_whole, low_places = _split(low.value)
    high_whole, high_places = _split(high.value)
    if low_whole == high_whole:
        return _prefixed(low_whole, _between(low_places, high_places, low.is_exclusive, high.is_exclusive, n_fraction))
    alternatives = _prefixed(low_whole, _above(low_places, low.is_exclusive, n_fraction))
    between = integers(low_whole + 1, high_whole - 1)
    if between:
        alternatives.append(sequence(between, f'("." [0-9]{{1,{n_fraction}}})?' if n_fraction else ""))
    return alternatives + _prefixed(high_whole, _below(high_places, high.is_exclusive, n_fraction))


def _prefixed(integer_part: int, places: list[str]) -> list[str]:
    """Returns alternatives for the number with each of these digits after its point; "" stands for no point."""
    digits = [digit for digit in places if digit]
    if not digits:
        return [literal(str(integer_part))] if places else []
    fraction = sequence('"."', either(digits))
    return [sequence(literal(str(integer_part)), f"({fraction})?" if "" in places else fraction)]


def _split(value: Decimal) -> tuple[int, str]:
    integer_part, _, places = f"{value:f}".partition(".")
    return int(integer_part), places.rstrip("0")


# Digits behind the point, at most `n`: alternatives for those whose value is above, below or between. Bounds come
# without zeros at the end.


def _above(bound: str, is_exclusive: bool, n: int) -> list[str]:
    alternatives = [
        sequence(literal(bound[:i]) if i else "", _digit(int(digit) + 1, 9), repeated("[0-9]", 0, n - i - 1))
        for i, digit in enumerate(bound)
        if digit < "9"
    ]
    return alternatives + [_append(bound, suffix) for suffix in _above_zero(is_exclusive, n - len(bound))]


def _above_zero(is_exclusive: bool, n: int) -> list[str]:
    if n == 0:
        return [] if is_exclusive else [""]
    return [sequence(repeated("[0-9]", 0, n - 1), "[1-9]")] if is_exclusive else ["", repeated("[0-9]", 1, n)]


def _below(bound: str, is_exclusive: bool, n: int) -> list[str]:
    alternatives = [literal(bound[:i]) if i else "" for i in range(len(bound))]
    alternatives += [
        sequence(literal(bound[:i]) if i else "", _digit(0, int(digit) - 1), repeated("[0-9]", 0, n - i - 1))
        for i, digit in enumerate(bound)
        if digit > "0"
    ]
    return (
        alternatives if is_exclusive else alternatives + [_append(bound, suffix) for suffix in _zeros(n - len(bound))]
    )


def _between(low: str, high: str, is_low_out: bool, is_high_out: bool, n: int) -> list[str]:
    a, b = low.ljust(n, "0"), high.ljust(n, "0")
    if a == b:
        return [_append(low, suffix) for suffix in _zeros(n - len(low))]
    i = next(i for i in range(n) if a[i] != b[i])
    alternatives = [literal(low) if low else ""] if len(low) <= i and not is_low_out else []
    shared, n_more = a[:i], n - i - 1
    if int(a[i]) + 1 < int(b[i]):
        middle = _digit(int(a[i]) + 1, int(b[i]) - 1)
        alternatives.append(sequence(literal(shared) if shared else "", middle, repeated("[0-9]", 0, n_more)))
    alternatives += [_append(a[: i + 1], suffix) for suffix in _above(a[i + 1 :].rstrip("0"), is_low_out, n_more)]
    return alternatives + [
        _append(b[: i + 1], suffix) for suffix in _below(b[i + 1 :].rstrip("0"), is_high_out, n_more)
    ]


def _zeros(n: int) -> list[str]:
    return ["", '"0"'] if n else [""]


def _append(digits: str, suffix: str) -> str:
    return sequence(literal(digits) if digits else "", suffix)


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
    body = integers(low, high)
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
    body = decimals(least, most, digits)
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
