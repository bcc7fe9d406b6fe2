"""Decides whether two schemas of a `oneOf` are never both valid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from corosrv.structured.patterns.tree import Check
from corosrv.structured.schema.admit import type_of
from corosrv.structured.schema.merge import Flat, Impossible, Schema, identity, types_of

_DEPTH = 3  # properties of properties that are looked at


def overlap(schemas: Sequence[Schema | None], flat: Flat, check: Check) -> tuple[int, int] | None:
    """Which two may both be valid for a value, if any; those that are None are valid for none. `check` may raise."""
    for i, j in permutations(range(len(schemas)), 2):
        check()
        one, other = schemas[i], schemas[j]
        if one is not None and other is not None and not excludes(one, other, flat):
            return i, j
    return None


def excludes(one: Schema, other: Schema, flat: Flat, depth: int = _DEPTH) -> bool:
    """Returns True if what is generated for `one` is never valid for `other`; False where that is not easily seen."""
    if depth == 0:
        return False
    if "anyOf" in one or "oneOf" in one:
        branches = one.get("anyOf", one.get("oneOf"))
        if all(_excludes(branch, other, flat, depth - 1) for branch in branches or ()):
            return True
    if "anyOf" in other or "oneOf" in other:
        branches = other.get("anyOf", other.get("oneOf"))
        if all(_excludes(one, branch, flat, depth - 1) for branch in branches or ()):
            return True
    if "enum" in one and "enum" in other:
        return not {identity(value) for value in one["enum"]} & {identity(value) for value in other["enum"]}
    shared = _shared_types(one, other)
    return all(_EXCLUDES.get(name, _never)(one, other, flat, depth) for name in shared)


def _excludes(one: Any, other: Any, flat: Flat, depth: int) -> bool:
    try:
        return excludes(flat(one), flat(other), flat, depth)
    except Impossible:
        return True


def _shared_types(one: Schema, other: Schema) -> list[str]:
    """Types of which both may have a value; those of an enum are the types of its values."""
    mine, theirs = ({"number" if name == "integer" else name for name in _types(schema)} for schema in (one, other))
    return sorted(mine & theirs)


def _types(schema: Schema) -> list[str]:
    return [type_of(value) for value in schema["enum"]] if "enum" in schema else types_of(schema)


def _never(one: Schema, other: Schema, flat: Flat, depth: int) -> bool:
    return False


def _numbers(one: Schema, other: Schema, flat: Flat, depth: int) -> bool:
    return _is_below(one, other) or _is_below(other, one)


def _is_below(one: Schema, other: Schema) -> bool:
    most = min((one[word] for word in ("maximum", "exclusiveMaximum") if word in one), default=None)
    least = max((other[word] for word in ("minimum", "exclusiveMinimum") if word in other), default=None)
    if most is None or least is None:
        return False
    is_open = one.get("exclusiveMaximum") == most or other.get("exclusiveMinimum") == least
    return bool(most < least or (most == least and is_open))


def _strings(one: Schema, other: Schema, flat: Flat, depth: int) -> bool:
    return _are_counts_apart(one, other, "Length")


def _arrays(one: Schema, other: Schema, flat: Flat, depth: int) -> bool:
    if _are_counts_apart(one, other, "Items"):
        return True
    n_sure = max(one.get("minItems", 0), other.get("minItems", 0))
    return n_sure > 0 and _excludes(_first_item(one), _first_item(other), flat, depth - 1)


def _first_item(schema: Schema) -> Any:
    first = schema.get("prefixItems")
    return first[0] if first else schema.get("items", True)


def _objects(one: Schema, other: Schema, flat: Flat, depth: int) -> bool:
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    if _are_counts_apart(one, other, "Properties"):
        return True
    sure = set(one.get("required", ()))
    asked = set(other.get("required", ()))
    is_closed = bool(mine) and not one.get("additionalProperties", False) and "patternProperties" not in one
    if is_closed and asked - mine.keys() - sure:
        return True
    if other.get("additionalProperties") is False and "patternProperties" not in other and sure - theirs.keys():
        return True
    return any(
        _excludes(mine[name], theirs[name], flat, depth - 1)
        for name in mine
        if name in theirs and (name in sure or name in asked)
    )


def _are_counts_apart(one: Schema, other: Schema, what: str) -> bool:
    least, most = f"min{what}", f"max{what}"
    return any(a.get(least, 0) > b.get(most, float("inf")) for a, b in ((one, other), (other, one)))


_EXCLUDES = {"number": _numbers, "string": _strings, "array": _arrays, "object": _objects}
