"""Decides whether a value is valid for the keywords beside its `enum`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from corosrv.formats.structured.limits import SchemaLimits
from corosrv.formats.structured.patterns.parse import parse
from corosrv.formats.structured.patterns.tree import Check, PatternError, matches
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
