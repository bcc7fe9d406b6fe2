"""Merges schemas that must all hold into one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from corosrv.formats.structured.schema.check import KEYWORDS, TYPES

Schema = Mapping[str, Any]
# Gives a schema as one without `$ref` and `allOf`. Raises Impossible.
Flat = Callable[[Any], Schema]


class Impossible(Exception):
    """No value is valid here. A signal within this room: an optional property is left out, an alternative dropped."""


class Unmergeable(Exception):
    """Two keywords that cannot be enforced at once. A signal to Flattener, which raises InvalidSchema."""


def identity(value: Any) -> str:
    """Returns a key that is equal for equal values, as JSON Schema sees it: 1 equals 1.0, but not true."""
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
    """Drops annotations, and writes each thing in one way: `const` as an enum, `nullable` as a choice."""
    keywords = {keyword: value for keyword, value in schema.items() if keyword in KEYWORDS}
    if "const" in keywords:
        const = keywords.pop("const")
        keywords = dict(merge(keywords, {"enum": [const]})) if "enum" in keywords else {**keywords, "enum": [const]}
    if isinstance(keywords.get("items"), list):
        keywords["prefixItems"] = keywords.pop("items")
        keywords["items"] = keywords.get("additionalItems", True)
    keywords.pop("additionalItems", None)
    if keywords.pop("nullable", False):
        keywords = {"anyOf": [keywords, {"type": "null"}]}
    return keywords


def types_of(schema: Schema) -> list[str]:
    """Returns the types that a normal schema allows; all where it names none. "number" includes the integers."""
    types = schema.get("type", list(TYPES[:-1]))
    names = [types] if isinstance(types, str) else list(dict.fromkeys(types))
    return [name for name in names if name != "integer" or "number" not in names]


def merge(first: Schema, second: Schema) -> Schema:
    """Merges two normal schemas into one that accepts what both do. Raises Impossible and Unmergeable."""
    merged = dict(first)
    for keyword, value in second.items():
        if keyword in ("properties", "patternProperties", "additionalProperties", "prefixItems", "items"):
            continue
        if keyword not in merged:
            merged[keyword] = value
        elif merged[keyword] != value or isinstance(value, bool):
            merged[keyword] = _COMBINE[keyword](merged[keyword], value)
    merged |= _merged_properties(first, second)
    merged |= _merged_items(first, second)
    for keyword in ("anyOf", "oneOf"):
        # One choice after the other: the second one becomes a part of `allOf`, and is converted later.
        if keyword in first and keyword in second and first[keyword] != second[keyword]:
            merged[keyword] = first[keyword]
            merged["allOf"] = [*merged.get("allOf", ()), {keyword: second[keyword]}]
    return merged


def _both(first: Any, second: Any) -> Any:
    if first is True or second is True:
        return second if first is True else first
    if first is False or second is False:
        return False
    return first if first == second else {"allOf": [first, second]}


def _types(first: Any, second: Any) -> list[str]:
    mine, theirs = types_of({"type": first}), types_of({"type": second})
    common = [name for name in mine if name in theirs or (name == "integer" and "number" in theirs)]
    common += [name for name in theirs if name == "integer" and "number" in mine]
    if not common:
        raise Impossible(f"no value is both of type {' or '.join(mine)} and of type {' or '.join(theirs)}")
    return common


def _values(first: list[Any], second: list[Any]) -> list[Any]:
    second_identities = {identity(value) for value in second}
    common = [value for value in first if identity(value) in second_identities]
    if not common:
        raise Impossible("no value is in both of two enums")
    return common


def _multiple(first: Any, second: Any) -> Any:
    if isinstance(first, int) and isinstance(second, int):
        return math.lcm(first, second)
    raise Unmergeable("multipleOf")


def _unmergeable(keyword: str) -> Callable[[Any, Any], Any]:
    def refuse(first: Any, second: Any) -> Any:
        raise Unmergeable(keyword)

    return refuse


_COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "required": lambda first, second: list(dict.fromkeys([*first, *second])),
    **dict.fromkeys(("minItems", "minLength", "minProperties", "minimum", "exclusiveMinimum"), max),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "maximum", "exclusiveMaximum"), min),
    "multipleOf": _multiple,
    "pattern": _unmergeable("pattern"),
    "format": _unmergeable("format"),
    "anyOf": lambda first, second: first,
    "oneOf": lambda first, second: first,
    "allOf": lambda first, second: [*first, *second],
}


def _merged_properties(first: Schema, second: Schema) -> dict[str, Any]:
    """Merges the properties; one schema's `additionalProperties` holds for those that only the other one names."""
    merged: dict[str, Any] = {}
    for keyword in ("properties", "patternProperties"):
        mine, theirs = first.get(keyword, {}), second.get(keyword, {})
        names = {name: _both(mine.get(name, True), theirs.get(name, True)) for name in [*mine, *theirs]}
        if names:
            merged[keyword] = names
    for closed, open_one in ((first, second), (second, first)):
        if "additionalProperties" not in closed:
            continue
        if closed["additionalProperties"] is not True and (
            "patternProperties" in closed or "patternProperties" in open_one
        ):
            raise Unmergeable("patternProperties")
        for name in open_one.get("properties", {}):
            if name not in closed.get("properties", {}):
                merged["properties"][name] = _both(merged["properties"][name], closed["additionalProperties"])
    if "additionalProperties" in first or "additionalProperties" in second:
        merged["additionalProperties"] = _both(
            first.get("additionalProperties", True), second.get("additionalProperties", True)
        )
    return merged


def _merged_items(first: Schema, second: Schema) -> dict[str, Any]:
    mine, theirs = first.get("prefixItems", []), second.get("prefixItems", [])
    merged: dict[str, Any] = {}
    if mine or theirs:
        merged["prefixItems"] = [
            _both(_item(first, index), _item(second, index)) for index in range(max(len(mine), len(theirs)))
        ]
    if "items" in first or "items" in second:
        merged["items"] = _both(first.get("items", True), second.get("items", True))
    return merged


def _item(schema: Schema, index: int) -> Any:
    prefix = schema.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else schema.get("items", True)
