"""Several schemas that must all hold, as one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from corosrv.structured.schema.check import KEYWORDS, TYPES

Schema = Mapping[str, Any]
# Gives a schema as one without `$ref` and `allOf`. Raises Impossible.
Flat = Callable[[Any], Schema]


class Impossible(Exception):
    """No value is valid here. A signal within this room: an optional property is left out, an alternative dropped."""


class Unmergeable(Exception):
    """Two keywords that cannot be enforced at once. A signal to Flattener, which raises InvalidSchema."""


def identity(value: Any) -> str:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_comparable(value), sort_keys=True)


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    return value


def normal(schema: Schema) -> Schema:
    """The same without remarks, and with one way to say what can be said in two."""
    found = {keyword: value for keyword, value in schema.items() if keyword in KEYWORDS}
    if "const" in found:
        const = found.pop("const")
        found = dict(merge(found, {"enum": [const]})) if "enum" in found else {**found, "enum": [const]}
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        found["items"] = found.get("additionalItems", True)
    found.pop("additionalItems", None)
    if found.pop("nullable", False):
        found = {"anyOf": [found, {"type": "null"}]}
    return found


def types_of(schema: Schema) -> list[str]:
    """The types that a normal schema names; all when it names none. Each number is a number, integers among them."""
    named = schema.get("type", list(TYPES[:-1]))
    names = [named] if isinstance(named, str) else list(dict.fromkeys(named))
    return [name for name in names if name != "integer" or "number" not in names]


def merge(one: Schema, other: Schema) -> Schema:
    """Valid for both of two normal schemas. Raises Impossible and Unmergeable."""
    found = dict(one)
    for keyword, value in other.items():
        if keyword in ("properties", "patternProperties", "additionalProperties", "prefixItems", "items"):
            continue
        if keyword not in found:
            found[keyword] = value
        elif found[keyword] != value or isinstance(value, bool):
            found[keyword] = _COMBINE[keyword](found[keyword], value)
    found |= _merged_properties(one, other)
    found |= _merged_items(one, other)
    for keyword in ("anyOf", "oneOf"):
        # One choice after the other: the second one waits behind.
        if keyword in one and keyword in other and one[keyword] != other[keyword]:
            found[keyword] = one[keyword]
            found["allOf"] = [*found.get("allOf", ()), {keyword: other[keyword]}]
    return found


def _both(one: Any, other: Any) -> Any:
    if one is True or other is True:
        return other if one is True else one
    if one is False or other is False:
        return False
    return one if one == other else {"allOf": [one, other]}


def _types(one: Any, other: Any) -> list[str]:
    mine, theirs = types_of({"type": one}), types_of({"type": other})
    found = [name for name in mine if name in theirs or (name == "integer" and "number" in theirs)]
    found += [name for name in theirs if name == "integer" and "number" in mine]
    if not found:
        raise Impossible(f"no value is both of type {' or '.join(mine)} and of type {' or '.join(theirs)}")
    return found


def _values(one: list[Any], other: list[Any]) -> list[Any]:
    allowed = {identity(value) for value in other}
    found = [value for value in one if identity(value) in allowed]
    if not found:
        raise Impossible("no value is in both of two enums")
    return found


def _multiple(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return math.lcm(one, other)
    raise Unmergeable("multipleOf")


def _unmergeable(keyword: str) -> Callable[[Any, Any], Any]:
    def refuse(one: Any, other: Any) -> Any:
        raise Unmergeable(keyword)

    return refuse


_COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    **dict.fromkeys(("minItems", "minLength", "minProperties", "minimum", "exclusiveMinimum"), max),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "maximum", "exclusiveMaximum"), min),
    "multipleOf": _multiple,
    "pattern": _unmergeable("pattern"),
    "format": _unmergeable("format"),
    "anyOf": lambda one, other: one,
    "oneOf": lambda one, other: one,
    "allOf": lambda one, other: [*one, *other],
}


def _merged_properties(one: Schema, other: Schema) -> dict[str, Any]:
    """Properties of both; what one says of all others holds for those that only the other one names."""
    found: dict[str, Any] = {}
    for keyword in ("properties", "patternProperties"):
        mine, theirs = one.get(keyword, {}), other.get(keyword, {})
        names = {name: _both(mine.get(name, True), theirs.get(name, True)) for name in [*mine, *theirs]}
        if names:
            found[keyword] = names
    for closed, open_one in ((one, other), (other, one)):
        if "additionalProperties" not in closed:
            continue
        if closed["additionalProperties"] is not True and (
            "patternProperties" in closed or "patternProperties" in open_one
        ):
            raise Unmergeable("patternProperties")
        for name in open_one.get("properties", {}):
            if name not in closed.get("properties", {}):
                found["properties"][name] = _both(found["properties"][name], closed["additionalProperties"])
    if "additionalProperties" in one or "additionalProperties" in other:
        found["additionalProperties"] = _both(
            one.get("additionalProperties", True), other.get("additionalProperties", True)
        )
    return found


def _merged_items(one: Schema, other: Schema) -> dict[str, Any]:
    mine, theirs = one.get("prefixItems", []), other.get("prefixItems", [])
    found: dict[str, Any] = {}
    if mine or theirs:
        found["prefixItems"] = [
            _both(_item(one, index), _item(other, index)) for index in range(max(len(mine), len(theirs)))
        ]
    if "items" in one or "items" in other:
        found["items"] = _both(one.get("items", True), other.get("items", True))
    return found


def _item(schema: Schema, index: int) -> Any:
    first = schema.get("prefixItems", [])
    return first[index] if index < len(first) else schema.get("items", True)
