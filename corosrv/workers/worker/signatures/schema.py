"""A predictor's OpenAPI document, with the keys and marks that Cog's clients know. Inputs are checked by it, too."""

from __future__ import annotations

from typing import Any

from corosrv.base import __version__
from corosrv.workers.worker.signatures.annotations import OutputType
from corosrv.workers.worker.signatures.endpoints import ENVELOPES, component, paths
from corosrv.workers.worker.signatures.shapes import (
    AnyObject,
    AnyOf,
    Anything,
    Coded,
    DictOf,
    Fetched,
    Hidden,
    ListOf,
    Nullable,
    OneOf,
    Record,
    Scalar,
    Shape,
)
from corosrv.workers.worker.signatures.signature import InputField, Signature
from corosrv.workers.worker.types import MISSING, FieldInfo

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LIMITS = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "regex": "pattern",
}


def document(signature: Signature, title: str = "Predictions") -> dict[str, Any]:
    """Makes an OpenAPI 3.0 document: `Input` and `Output` of this predictor, and the endpoints around them."""
    schemas: dict[str, Any] = {"Input": _inputs(signature.inputs), "Output": _output(signature.output)}
    schemas |= {
        _enum_name(field.name): _enum(field.name, choices) for field in signature.inputs if (choices := _choices(field))
    }
    return {
        "openapi": "3.0.2",
        "info": {"title": title, "version": __version__},
        "paths": paths(signature.is_streaming),
        "components": {"schemas": schemas | ENVELOPES},
    }


def _inputs(fields: tuple[InputField, ...]) -> dict[str, Any]:
    schema: dict[str, Any] = {"title": "Input", "type": "object"}
    if required := [field.name for field in fields if field.is_required]:
        schema["required"] = required
    schema["properties"] = {field.name: _property(order, field) for order, field in enumerate(fields)}
    return schema


def _property(order: int, field: InputField) -> dict[str, Any]:
    info = field.info
    schema = {"x-order": order} | _input(field.shape, field.name, info)
    if "allOf" not in schema:
        schema["title"] = _title(field.name)
    if info.description is not None:
        schema["description"] = info.description
    if field.default is not MISSING:
        schema["default"] = field.default
    if info.deprecated:
        schema["deprecated"] = True
    if info.accept is not None:
        schema["x-cog-accept"] = info.accept
    return schema


def _input(shape: Shape, name: str, info: FieldInfo) -> dict[str, Any]:
    """Describes an input. Choices have a component of their own; limits of a list stand at its members."""
    match shape:
        case Nullable(inner):
            return _input(inner, name, info) | {"nullable": True}
        case ListOf(item):
            return {"type": "array", "items": _input(item, name, info)}
        case OneOf():
            return {"allOf": [component(_enum_name(name))]}
        case _:
            limits = {key: getattr(info, limit) for limit, key in _LIMITS.items()}
            return schema_of(shape) | {key: value for key, value in limits.items() if value is not None}


def _output(output: OutputType) -> dict[str, Any]:
    schema = schema_of(output.shape)
    if output.is_iterator:
        schema = {"type": "array", "items": schema, "x-cog-array-type": "iterator"}
    if output.is_concatenated:
        schema["x-cog-array-display"] = "concatenate"
    return {"title": "Output"} | schema


def schema_of(shape: Shape) -> dict[str, Any]:
    """Describes a shape, without an author's limits and descriptions."""
    match shape:
        case Scalar(kind):
            return {"type": _TYPES[kind]}
        case Fetched():
            return {"type": "string", "format": "uri"}
        case Hidden():
            return {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}
        case AnyObject() | Coded():
            return {"type": "object"}
        case ListOf(item):
            return {"type": "array", "items": schema_of(item)}
        case DictOf(value):
            return {"type": "object", "additionalProperties": schema_of(value)}
        case AnyOf(members):
            return {"anyOf": [schema_of(member) for member in members]}
        case OneOf(values):
            return _values(values)
        case Nullable(inner):
            return schema_of(inner) | {"nullable": True}
        case Record():
            return _record(shape)
        case Anything():
            return {}


def _record(record: Record) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {name: {"title": _title(name)} | schema_of(shape) for name, shape, _ in record.fields}
    if required := [name for name, _, is_required in record.fields if is_required]:
        schema["required"] = required
    return schema


def _choices(field: InputField) -> OneOf | None:
    """Returns the choices of the field or of its list's members, if any."""
    shape = field.shape
    while isinstance(shape, Nullable | ListOf):
        shape = shape.inner if isinstance(shape, Nullable) else shape.item
    return shape if isinstance(shape, OneOf) else None


def _enum(name: str, choices: OneOf) -> dict[str, Any]:
    return {"title": name, "description": "An enumeration."} | _values(choices.values)


def _values(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    return ({"type": _TYPES[kinds.pop()]} if len(kinds) == 1 else {}) | {"enum": list(values)}


def _enum_name(name: str) -> str:
    return name + "_" if name in {"Input", "Output", *ENVELOPES} else name


def _title(name: str) -> str:
    return name.replace("_", " ").title()
