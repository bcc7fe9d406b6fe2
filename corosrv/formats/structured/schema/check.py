"""Checks, keyword by keyword, that a schema is valid and that a grammar can hold it, before anything is converted.

`resolve` follows pointers within the document; other documents are never fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.limits import SchemaLimits


def step(place: str, *steps: str) -> str:
    """Returns the pointer that leads from `place` along the steps."""
    return "/".join((place, *(name.replace("~", "~0").replace("/", "~1") for name in steps)))


def resolve(document: Any, ref: str, place: str, param: str) -> tuple[Any, str]:
    """Returns the schema that a `$ref` at `place` points to, and its place. Raises InvalidSchema."""
    at = step(place, "$ref")
    if not ref.startswith("#"):
        raise InvalidSchema(at, f"'{_short(ref)}' lies outside of this schema, and is not fetched", param)
    if ref != "#" and not ref.startswith("#/"):
        raise InvalidSchema(at, f"'{_short(ref)}' is no pointer; '#/$defs/name' would be one", param)
    target, reached = document, "#"
    for name in unquote(ref).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isascii() and key.isdigit() and int(key[:6]) < len(target):
            target = target[int(key[:6])]
        else:
            raise InvalidSchema(at, f"'{_short(ref)}' points to nothing", param)
        reached = step(reached, key)
    if not isinstance(target, (dict, bool)):
        raise InvalidSchema(at, f"'{_short(ref)}' does not point to a schema", param)
    return target, reached


def _short(ref: str) -> str:
    return ref if len(ref) <= 80 else f"{ref[:80]}..."


TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")

# Yields the subschemas of a keyword's value and the steps that lead there; raises ValueError with what would be right.
Check = Callable[[Any, SchemaLimits], Iterator[tuple[tuple[str, ...], Any]]]
_Subschemas = Iterator[tuple[tuple[str, ...], Any]]


def _types(value: Any, limits: SchemaLimits) -> _Subschemas:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise ValueError(f"must be one of {', '.join(TYPES)}, or a list of them")
    yield from ()


def _enum(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one value")
    if len(value) > limits.enum:
        raise ValueError(f"has {len(value)} values, and at most {limits.enum} are taken")
    yield from ()


def _anything(value: Any, limits: SchemaLimits) -> _Subschemas:
    yield from ()


def _count(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not is_whole(value) or value < 0:
        raise ValueError("must be an integer of at least 0")
    yield from ()


def _least_count(value: Any, limits: SchemaLimits) -> _Subschemas:
    yield from _count(value, limits)
    if value > limits.repetitions:
        raise ValueError(f"must be at most {limits.repetitions}")


def _number(value: Any, limits: SchemaLimits) -> _Subschemas:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise ValueError("must be a number")
    if abs(value) >= 10**30:
        raise ValueError("must be below 1e30")
    yield from ()


def _step(value: Any, limits: SchemaLimits) -> _Subschemas:
    yield from _number(value, limits)
    if value <= 0:
        raise ValueError("must be above 0")


def _text(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    yield from ()


def _names(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of strings")
    if len(value) > limits.properties:
        raise ValueError(f"has {len(value)} names, and at most {limits.properties} are taken")
    yield from ()


def _flag(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    yield from ()


def _schema(value: Any, limits: SchemaLimits) -> _Subschemas:
    yield (), value


def _schemas(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one schema")
    for index, schema in enumerate(value):
        yield (str(index),), schema


def _items(value: Any, limits: SchemaLimits) -> _Subschemas:
    yield from _schemas(value, limits) if isinstance(value, list) else _schema(value, limits)


def _named_schemas(value: Any, limits: SchemaLimits) -> _Subschemas:
    if not isinstance(value, dict):
        raise ValueError("must be an object that gives names schemas")
    for name, schema in value.items():
        yield (name,), schema


KEYWORDS: Mapping[str, Check] = {
    "$ref": _text,
    "type": _types,
    "enum": _enum,
    "const": _anything,
    "nullable": _flag,
    "anyOf": _schemas,
    "oneOf": _schemas,
    "allOf": _schemas,
    "properties": _named_schemas,
    "patternProperties": _named_schemas,
    "additionalProperties": _schema,
    "required": _names,
    "minProperties": _least_count,
    "maxProperties": _count,
    "items": _items,
    "additionalItems": _schema,
    "prefixItems": _schemas,
    "minItems": _least_count,
    "maxItems": _count,
    "minLength": _least_count,
    "maxLength": _count,
    "pattern": _text,
    "format": _text,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _step,
}

# Keywords that say something about values which a grammar cannot hold. Whatever is in neither table is a remark.
_BECAUSE = "is not supported: a grammar cannot hold it"
REFUSED = {
    **dict.fromkeys(("not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames"), _BECAUSE),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _BECAUSE),
    **dict.fromkeys(
        ("unevaluatedProperties", "unevaluatedItems"), "is not supported; say it with additionalProperties"
    ),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), "is not supported; say it with $ref"),
}

# A least and a most that contradict each other when the least is above.
_PAIRS = (
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
)


_LOOK_EVERY = 64  # values


def is_whole(value: Any) -> bool:
    """Returns whether a value is an integer, or a float like 2.0, which JSON does not tell from one."""
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def check(document: Any, param: str, limits: SchemaLimits, look: Callable[[], object] = lambda: None) -> None:
    """Raises InvalidSchema for a schema that cannot be used. Linear in its size, and not recursive: it may be hostile.

    Calls `look` again and again, which may wait and raise.
    """
    _check_size(document, param, limits, look)
    visited: set[int] = set()
    todo: list[tuple[Any, str, int]] = [(document, "#", 0)]
    n_properties = n_seen = 0
    while todo:
        n_seen += 1
        if n_seen % _LOOK_EVERY == 0:
            look()
        schema, place, depth = todo.pop()
        if isinstance(schema, bool) or id(schema) in visited:
            continue
        if not isinstance(schema, dict):
            raise InvalidSchema(place, "a schema must be an object, or true or false", param)
        visited.add(id(schema))
        if depth > limits.depth:
            raise InvalidSchema(place, f"schemas are nested deeper than {limits.depth} levels", param)
        if isinstance(properties := schema.get("properties"), dict):  # what is none is refused below, in words
            n_properties += len(properties)
        if n_properties > limits.properties:
            raise InvalidSchema(place, f"there are more than {limits.properties} properties", param)
        for inner, at in _checked(schema, place, param, limits):
            todo.append((inner, at, depth + 1))
            if len(todo) % _LOOK_EVERY == 0:
                look()
        if "$ref" in schema:
            todo.append((*resolve(document, schema["$ref"], place, param), 0))


def _check_size(document: Any, param: str, limits: SchemaLimits, look: Callable[[], object]) -> None:
    todo = [(document, 0)]
    n_values = n_chars = 0
    while todo:
        value, depth = todo.pop()
        n_values += 1
        if n_values % _LOOK_EVERY == 0:
            look()
        # Those of a list are counted before they are walked through: it may have a million.
        n_inner = len(value) if isinstance(value, (list, dict)) else 0
        if n_values + len(todo) + n_inner > limits.nodes:
            raise InvalidSchema("#", f"it has more than {limits.nodes} values", param)
        if depth > 2 * limits.depth:
            raise InvalidSchema("#", f"it is nested deeper than {limits.depth} levels", param)
        if isinstance(value, str):
            n_chars += len(value)
        elif isinstance(value, dict):
            n_chars += sum(map(len, value))
            todo += ((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            todo += ((inner, depth + 1) for inner in value)
        if n_chars > limits.chars:
            raise InvalidSchema("#", f"its texts have more than {limits.chars} characters", param)


def _checked(schema: dict[str, Any], place: str, param: str, limits: SchemaLimits) -> Iterator[tuple[Any, str]]:
    """Checks one schema. Yields its subschemas with their places, unchecked."""
    for keyword, value in schema.items():
        at = step(place, keyword)
        if keyword in REFUSED:
            raise InvalidSchema(at, f"'{keyword}' {REFUSED[keyword]}", param)
        if keyword == "uniqueItems" and value is not False:
            raise InvalidSchema(at, f"'{keyword}' {_BECAUSE}", param)
        if keyword == "$id" and place != "#":
            raise InvalidSchema(at, "'$id' is not supported inside a schema", param)
        try:
            for steps, inner in KEYWORDS.get(keyword, _anything)(value, limits):
                yield inner, step(at, *steps)
        except ValueError as error:
            raise InvalidSchema(at, f"'{keyword}' {error}", param) from None
    for least, most in _PAIRS:
        if least in schema and most in schema and _is_above(schema, least, most):
            raise InvalidSchema(step(place, least), f"'{least}' is above '{most}', and no value can be both", param)


def _is_above(schema: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = Decimal(schema[least]), Decimal(schema[most])
    return low > high or (low == high and "exclusive" in least + most)
