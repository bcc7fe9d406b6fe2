"""Decides whether two schemas of a `oneOf` are never both valid, and whether a value is valid for a flat schema."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

from corosrv.formats.structured.limits import SchemaLimits
from corosrv.formats.structured.pattern import parse
from corosrv.formats.structured.pattern_tree import Check, PatternError, matches
from corosrv.formats.structured.schema.check import is_whole
from corosrv.formats.structured.schema.merge import Flat, Impossible, Schema, identity, types_of


class Undecided(Exception):
    """The answer depends on a keyword that is not evaluated. A signal to convert, which refuses the schema."""


def type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "integer" if is_whole(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def admits(schema: Schema, value: Any, limits: SchemaLimits, flat: Flat, check: Check) -> bool:
    """Returns whether the value is valid for a flat schema. Recurses as deep as the value nests.

    Raises Undecided for keywords that are not evaluated, and what `check` raises.
    """
    check()
    kind = type_of(value)
    if kind not in types_of(schema) and not (kind == "integer" and "number" in types_of(schema)):
        return False
    if "enum" in schema and identity(value) not in {identity(member) for member in schema["enum"]}:
        return False
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            raise Undecided(keyword)
    if kind in ("integer", "number"):
        return _admits_number(schema, value)
    if kind == "string":
        return _admits_string(schema, value, limits, check)
    if kind == "array":
        return _admits_array(schema, value, limits, flat, check)
    return kind != "object" or _admits_object(schema, value, limits, flat, check)


def _admits_number(schema: Schema, value: float) -> bool:
    return (
        ("minimum" not in schema or value >= schema["minimum"])
        and ("maximum" not in schema or value <= schema["maximum"])
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and ("multipleOf" not in schema or Fraction(value) % Fraction(schema["multipleOf"]) == 0)
    )


def _admits_string(schema: Schema, value: str, limits: SchemaLimits, check: Check) -> bool:
    if not _is_count_within(schema, len(value), "Length"):
        return False
    if "pattern" not in schema:
        return True
    try:
        return matches(parse(schema["pattern"], limits), value, check)
    except PatternError:
        raise Undecided("pattern") from None


def _admits_array(schema: Schema, value: list[Any], limits: SchemaLimits, flat: Flat, check: Check) -> bool:
    first = schema.get("prefixItems", [])
    schemas = [*first, *[schema.get("items", True)] * (len(value) - len(first))]
    return _is_count_within(schema, len(value), "Items") and all(
        _admits_inner(inner, item, limits, flat, check) for inner, item in zip(schemas, value, strict=False)
    )


def _admits_object(schema: Schema, value: dict[str, Any], limits: SchemaLimits, flat: Flat, check: Check) -> bool:
    if "patternProperties" in schema:
        raise Undecided("patternProperties")
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", True)
    return (
        _is_count_within(schema, len(value), "Properties")
        and all(name in value for name in schema.get("required", ()))
        and all(
            _admits_inner(properties.get(name, additional), item, limits, flat, check) for name, item in value.items()
        )
    )


def _admits_inner(schema: Any, value: Any, limits: SchemaLimits, flat: Flat, check: Check) -> bool:
    try:
        return admits(flat(schema), value, limits, flat, check)
    except Impossible:
        return False


def _is_count_within(schema: Schema, count: int, noun: str) -> bool:
    return bool(schema.get(f"min{noun}", 0) <= count <= schema.get(f"max{noun}", count))


_DEPTH = 3  # properties of properties that are looked at


def overlap(schemas: Sequence[Schema | None], flat: Flat, check: Check) -> tuple[int, int] | None:
    """Returns the indices of two schemas that may accept the same value, or None. A None schema accepts nothing.

    Calls `check` again and again, which may raise.
    """
    for i, j in permutations(range(len(schemas)), 2):
        check()
        first, second = schemas[i], schemas[j]
        if first is not None and second is not None and not excludes(first, second, flat):
            return i, j
    return None


def excludes(first: Schema, second: Schema, flat: Flat, depth: int = _DEPTH) -> bool:
    """Returns True if texts generated for `first` are never valid for `second`; False where that is not easily seen."""
    if depth == 0:
        return False
    if "anyOf" in first or "oneOf" in first:
        branches = first.get("anyOf", first.get("oneOf"))
        if all(_excludes(branch, second, flat, depth - 1) for branch in branches or ()):
            return True
    if "anyOf" in second or "oneOf" in second:
        branches = second.get("anyOf", second.get("oneOf"))
        if all(_excludes(first, branch, flat, depth - 1) for branch in branches or ()):
            return True
    if "enum" in first and "enum" in second:
        return not {identity(value) for value in first["enum"]} & {identity(value) for value in second["enum"]}
    shared = _shared_types(first, second)
    return all(_EXCLUDES.get(name, _never)(first, second, flat, depth) for name in shared)


def _excludes(first: Any, second: Any, flat: Flat, depth: int) -> bool:
    try:
        return excludes(flat(first), flat(second), flat, depth)
    except Impossible:
        return True


def _shared_types(first: Schema, second: Schema) -> list[str]:
    """Returns the types that both schemas allow; an enum allows the types of its values."""
    mine, theirs = ({"number" if name == "integer" else name for name in _types(schema)} for schema in (first, second))
    return sorted(mine & theirs)


def _types(schema: Schema) -> list[str]:
    return [type_of(value) for value in schema["enum"]] if "enum" in schema else types_of(schema)


def _never(first: Schema, second: Schema, flat: Flat, depth: int) -> bool:
    return False


def _numbers(first: Schema, second: Schema, flat: Flat, depth: int) -> bool:
    return _is_below(first, second) or _is_below(second, first)


def _is_below(first: Schema, second: Schema) -> bool:
    most = min((first[word] for word in ("maximum", "exclusiveMaximum") if word in first), default=None)
    least = max((second[word] for word in ("minimum", "exclusiveMinimum") if word in second), default=None)
    if most is None or least is None:
        return False
    is_open = first.get("exclusiveMaximum") == most or second.get("exclusiveMinimum") == least
    return bool(most < least or (most == least and is_open))


def _strings(first: Schema, second: Schema, flat: Flat, depth: int) -> bool:
    return _are_counts_apart(first, second, "Length")


def _arrays(first: Schema, second: Schema, flat: Flat, depth: int) -> bool:
    if _are_counts_apart(first, second, "Items"):
        return True
    n_sure = max(first.get("minItems", 0), second.get("minItems", 0))
    return n_sure > 0 and _excludes(_first_item(first), _first_item(second), flat, depth - 1)


def _first_item(schema: Schema) -> Any:
    prefix = schema.get("prefixItems")
    return prefix[0] if prefix else schema.get("items", True)


def _objects(first: Schema, second: Schema, flat: Flat, depth: int) -> bool:
    mine, theirs = first.get("properties", {}), second.get("properties", {})
    if _are_counts_apart(first, second, "Properties"):
        return True
    required_by_first = set(first.get("required", ()))
    required_by_second = set(second.get("required", ()))
    is_closed = bool(mine) and not first.get("additionalProperties", False) and "patternProperties" not in first
    if is_closed and required_by_second - mine.keys() - required_by_first:
        return True
    if (
        second.get("additionalProperties") is False
        and "patternProperties" not in second
        and required_by_first - theirs.keys()
    ):
        return True
    return any(
        _excludes(mine[name], theirs[name], flat, depth - 1)
        for name in mine
        if name in theirs and (name in required_by_first or name in required_by_second)
    )


def _are_counts_apart(first: Schema, second: Schema, noun: str) -> bool:
    least, most = f"min{noun}", f"max{noun}"
    return any(a.get(least, 0) > b.get(most, float("inf")) for a, b in ((first, second), (second, first)))


_EXCLUDES = {"number": _numbers, "string": _strings, "array": _arrays, "object": _objects}
