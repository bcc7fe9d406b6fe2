"""Reads a predictor's inputs and output from the annotations of its method, and makes its OpenAPI document of them.

The document has the keys and marks that Cog's clients know. Inputs are checked by it, too.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corosrv.base import __version__
from corosrv.base.errors import SignatureError
from corosrv.workers.worker.predictor import MISSING, FieldInfo
from corosrv.workers.worker.signatures import defaults, shapes
from corosrv.workers.worker.signatures.annotations import OutputType, input_shape, is_async, output_type
from corosrv.workers.worker.signatures.defaults import concurrency, find_defaults, is_streaming, limited
from corosrv.workers.worker.signatures.endpoints import ENVELOPES, component, paths

_METHODS = ("run", "predict")
_UNSURE = object()  # None, or no default at all


@dataclass(frozen=True, slots=True)
class InputField:
    """One input. `default` is a JSON value, or MISSING; `info`: the author's description."""

    name: str
    shape: shapes.Shape
    info: FieldInfo
    default: Any
    is_required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The description of a predictor: its inputs, output and how to call it."""

    method: str  # of the class; the function's name where the target is a function
    inputs: tuple[InputField, ...]
    output: OutputType
    is_async: bool
    is_streaming: bool  # its author lets clients read along
    concurrency: int | None  # as its author declared it
    takes_weights: bool  # in setup()

    @property
    def is_generator(self) -> bool:
        """True if it is written with `yield`, or annotated as if it were."""
        return self.output.is_iterator


def read(target: type | Callable[..., Any]) -> Signature:
    """Reads a predictor's class or function. Raises SignatureError, which names the parameter at fault."""
    method = _method(target) if isinstance(target, type) else getattr(target, "__name__", "run")
    function = getattr(target, method) if isinstance(target, type) else target
    inner = _unwrapped(function)
    hints = _hints(inner)
    parameters = list(inspect.signature(inner).parameters.values())
    if isinstance(target, type) and not isinstance(inspect.getattr_static(target, method), staticmethod | classmethod):
        del parameters[0]  # self
    has_default = find_defaults(inner)
    returned, functions = hints.get("return", Any), (function, inner)
    return Signature(
        method=method,
        inputs=tuple(_input(parameter, hints, has_default) for parameter in parameters),
        output=output_type(returned, function),
        is_async=is_async(returned, functions),
        is_streaming=is_streaming(*functions),
        concurrency=concurrency(*functions),
        takes_weights="weights" in inspect.signature(target.setup).parameters if hasattr(target, "setup") else False,
    )


def _method(kind: type) -> str:
    """Returns the name of the method that the author wrote; base classes of this package and of cog do not count."""
    methods = [
        name
        for name in _METHODS
        if any(name in base.__dict__ for base in kind.__mro__ if not shapes.is_framework(base.__module__))
    ]
    if len(methods) == 1:
        return methods[0]
    raise SignatureError(
        f"{kind.__name__} defines both run() and predict(): leave one of them"
        if methods
        else f"{kind.__name__} has neither run() nor predict()"
    )


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the author's own function inside decorators, also inside those without functools.wraps."""
    inner: Callable[..., Any] = inspect.unwrap(function)
    kinds = {parameter.kind for parameter in inspect.signature(inner).parameters.values()}
    if not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return inner
    cells = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or ()]
    functions = [content for content in cells if inspect.isfunction(content)]
    return _unwrapped(functions[0]) if len(functions) == 1 else inner


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:  # evaluating annotations runs the author's code, which may raise anything
        raise SignatureError(f"the annotations cannot be read: {type(error).__name__}: {error}") from error


def _input(parameter: inspect.Parameter, hints: dict[str, Any], has_default: dict[str, bool]) -> InputField:
    name = parameter.name
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise SignatureError(f"{parameter}: every input needs a name of its own")
    if name not in hints:
        raise SignatureError(f"{name}: an input needs an annotation")
    info = _info(parameter.default, hints[name])
    try:
        shape = limited(input_shape(hints[name]), info)
        if info.default is _UNSURE:
            info = dataclasses.replace(info, default=_cog_default(shape, has_default.get(name)))
        if info.default is None:
            shape = shapes.nullable(shape)
        default = defaults.as_json(shape, info)
    except SignatureError as error:
        raise SignatureError(f"{name}: {error}") from None
    is_required = info.default is MISSING and not isinstance(shape, shapes.Nullable)
    return InputField(name, shape, info, default, is_required)


def _info(default: Any, annotation: Any) -> FieldInfo:
    """Returns the Input(...) behind `=` or in Annotated; a plain default counts as Input(default)."""
    if (info := _as_info(default)) is not None:
        return info
    marks = annotation.__metadata__ if typing.get_origin(annotation) is typing.Annotated else ()
    info = next((info for mark in marks if (info := _as_info(mark)) is not None), FieldInfo())
    return info if default is inspect.Parameter.empty else dataclasses.replace(info, default=default)


def _as_info(value: Any) -> FieldInfo | None:
    if isinstance(value, FieldInfo):
        return value
    if type(value).__name__ != "FieldInfo" or not shapes.is_framework(type(value).__module__):
        return None
    names = (field.name for field in dataclasses.fields(FieldInfo))
    info = FieldInfo(**{name: getattr(value, name) for name in names if hasattr(value, name)})
    return info if info.default is not None else dataclasses.replace(info, default=_UNSURE)


def _cog_default(shape: shapes.Shape, is_explicit: bool | None) -> Any:
    """Returns the default of cog's Input, which is None both without one and with `default=None`: None or MISSING.

    `is_explicit`: whether the source names a default, None if unknown. As in Cog, None is a default only of types that
    accept it, and of secrets, which may be omitted.
    """
    if isinstance(shape, shapes.Hidden):
        return MISSING if is_explicit is False else None
    return None if is_explicit and isinstance(shape, shapes.Nullable) else MISSING


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
    schema = {"x-order": order} | _input_schema(field.shape, field.name, info)
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


def _input_schema(shape: shapes.Shape, name: str, info: FieldInfo) -> dict[str, Any]:
    """Describes an input. Choices have a component of their own; limits of a list stand at its members."""
    match shape:
        case shapes.Nullable(inner):
            return _input_schema(inner, name, info) | {"nullable": True}
        case shapes.ListOf(item):
            return {"type": "array", "items": _input_schema(item, name, info)}
        case shapes.OneOf():
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


def schema_of(shape: shapes.Shape) -> dict[str, Any]:
    """Describes a shape, without an author's limits and descriptions."""
    match shape:
        case shapes.Scalar(kind):
            return {"type": _TYPES[kind]}
        case shapes.Fetched():
            return {"type": "string", "format": "uri"}
        case shapes.Hidden():
            return {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}
        case shapes.AnyObject() | shapes.Coded():
            return {"type": "object"}
        case shapes.ListOf(item):
            return {"type": "array", "items": schema_of(item)}
        case shapes.DictOf(value):
            return {"type": "object", "additionalProperties": schema_of(value)}
        case shapes.AnyOf(members):
            return {"anyOf": [schema_of(member) for member in members]}
        case shapes.OneOf(values):
            return _values(values)
        case shapes.Nullable(inner):
            return schema_of(inner) | {"nullable": True}
        case shapes.Record():
            return _record(shape)
        case shapes.Anything():
            return {}


def _record(record: shapes.Record) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {name: {"title": _title(name)} | schema_of(shape) for name, shape, _ in record.fields}
    if required := [name for name, _, is_required in record.fields if is_required]:
        schema["required"] = required
    return schema


def _choices(field: InputField) -> shapes.OneOf | None:
    """Returns the choices of the field or of its list's members, if any."""
    shape = field.shape
    while isinstance(shape, shapes.Nullable | shapes.ListOf):
        shape = shape.inner if isinstance(shape, shapes.Nullable) else shape.item
    return shape if isinstance(shape, shapes.OneOf) else None


def _enum(name: str, choices: shapes.OneOf) -> dict[str, Any]:
    return {"title": name, "description": "An enumeration."} | _values(choices.values)


def _values(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    return ({"type": _TYPES[kinds.pop()]} if len(kinds) == 1 else {}) | {"enum": list(values)}


def _enum_name(name: str) -> str:
    return name + "_" if name in {"Input", "Output", *ENVELOPES} else name


def _title(name: str) -> str:
    return name.replace("_", " ").title()
