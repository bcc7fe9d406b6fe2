"""Reads what an author declared about inputs besides their types: defaults, choices, limits and decorators.

A default becomes the JSON value that a client could send instead. Choices and limits that do not fit the shape are
refused. Decorators are those of this package or of cog's.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable
from enum import Enum
from typing import Any

from corosrv.base.errors import SignatureError
from corosrv.workers.worker.predictor import CONCURRENT, MISSING, STARS, STREAMING, FieldInfo
from corosrv.workers.worker.signatures import shapes


def limited(shape: shapes.Shape, info: FieldInfo) -> shapes.Shape:
    """Returns the shape with its choices. Raises SignatureError for a limit that such values cannot have."""
    kinds = _kinds(shape)
    if (info.ge is not None or info.le is not None) and not kinds & {int, float}:
        raise SignatureError("ge and le are for numbers")
    if (info.min_length, info.max_length, info.regex) != (None, None, None) and str not in kinds:
        raise SignatureError("min_length, max_length and regex are for texts")
    if info.accept is not None and not _is_file(shape):
        raise SignatureError("accept is only valid on Path or File inputs")
    if info.regex is not None:
        _check_pattern(info.regex)
    return shape if info.choices is None else _with_choices(shape, info.choices)


def _is_file(shape: shapes.Shape) -> bool:
    match shape:
        case shapes.Nullable(inner) | shapes.ListOf(inner):
            return _is_file(inner)
        case shapes.AnyOf(members):
            return any(map(_is_file, members))
    return isinstance(shape, shapes.Fetched)


def _kinds(shape: shapes.Shape) -> set[type]:
    """Returns the types that values, or the members of lists, may have."""
    match shape:
        case shapes.Scalar(kind):
            return {kind}
        case shapes.Nullable(inner) | shapes.ListOf(inner):
            return _kinds(inner)
        case shapes.AnyOf(members):
            return set().union(*map(_kinds, members))
        case shapes.OneOf(values):
            return {type(value) for value in values}
        case _:
            return set()


def _check_pattern(regex: str) -> None:
    try:
        re.compile(regex)
    except re.error as error:
        raise SignatureError(f"the regex cannot be read: {error}") from error


def _with_choices(shape: shapes.Shape, choices: list[object]) -> shapes.Shape:
    match shape:
        case shapes.Nullable(inner):
            return shapes.Nullable(_with_choices(inner, choices))
        case shapes.ListOf(item):
            return shapes.ListOf(_with_choices(item, choices))
        case shapes.OneOf():
            raise SignatureError("the type has choices of its own already")
    kinds = _kinds(shape)
    values = tuple(choice.value if isinstance(choice, Enum) else choice for choice in choices)
    if not values or any(type(value) not in kinds for value in values):
        names = " or ".join(sorted(kind.__name__ for kind in kinds)) or "of a type that allows it"
        raise SignatureError(f"choices have to be one or more values, each {names}")
    return shapes.OneOf(values)


def as_json(shape: shapes.Shape, info: FieldInfo) -> Any:
    """Returns the default as a JSON value; MISSING if the input has none.

    Stars stand for a secret's default. Raises SignatureError for a default that the input would refuse.
    """
    if info.default is MISSING or info.default is None:
        return info.default
    return _value(shape, info.default, info)


def _value(shape: shapes.Shape, value: Any, info: FieldInfo) -> Any:
    match shape:
        case shapes.Nullable(inner):
            return None if value is None else _value(inner, value, info)
        case shapes.Scalar(kind):
            return _scalar(kind, value, info)
        case shapes.OneOf(values):
            return _choice(values, value)
        case shapes.ListOf(item) if isinstance(value, list | tuple):
            return [_value(item, member, info) for member in value]
        case shapes.DictOf(inner) if isinstance(value, dict):
            return {key: _value(inner, member, info) for key, member in value.items()}
        case shapes.AnyOf(members):
            return _member(members, value, info)
        case shapes.Fetched() if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        case shapes.Hidden() if isinstance(value, str) or hasattr(value, "get_secret_value"):
            return STARS
        case shapes.Anything():
            return _json(value)
        case shapes.Coded(coder):
            return _json(value if isinstance(value, dict) else coder.encode(value))
        case shapes.AnyObject() if isinstance(value, dict):
            return _json(value)
    raise SignatureError(f"the default {value!r} has another type than the input")


def _scalar(kind: Any, value: Any, info: FieldInfo) -> Any:
    value = value.value if isinstance(value, Enum) else value
    if kind in (int, float) and type(value) in (int, float) and kind(value) == value:
        value = kind(value)
    if type(value) is not kind:
        raise SignatureError(f"the default {value!r} is no {kind.__name__}")
    if kind is str and not _fits(value, info):
        raise SignatureError(f"the default {value!r} is invalid: it is outside the limits")
    if kind is not str:
        _check_within(value, info)
    return value


def _check_within(value: float, info: FieldInfo) -> None:
    if info.ge is not None and value < info.ge:
        raise SignatureError(f"the default {value!r} is invalid: the minimum is {info.ge}")
    if info.le is not None and value > info.le:
        raise SignatureError(f"the default {value!r} is invalid: the maximum is {info.le}")


def _fits(text: str, info: FieldInfo) -> bool:
    return (
        len(text) >= (info.min_length or 0)
        and (info.max_length is None or len(text) <= info.max_length)
        and (info.regex is None or re.search(info.regex, text) is not None)
    )


def _choice(values: tuple[Any, ...], value: Any) -> Any:
    value = value.value if isinstance(value, Enum) else value
    for choice in values:
        if choice == value and type(choice) is type(value):
            return choice
    raise SignatureError(f"the default {value!r} is none of the choices")


def _member(members: tuple[shapes.Shape, ...], value: Any, info: FieldInfo) -> Any:
    for member in sorted(members, key=lambda member: member != shapes.Scalar(type(value))):
        try:
            return _value(member, value, info)
        except SignatureError:
            continue
    raise SignatureError(f"the default {value!r} is of none of the types")


def _json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SignatureError(f"the default is no JSON value: {error}") from error


_COG_CONCURRENT = "__cog_concurrent_max__"  # what Cog's own @concurrent leaves


def concurrency(*functions: Callable[..., Any]) -> int | None:
    """Returns N of @concurrent(max=N) on the outermost function that has it, else None."""
    marks = (getattr(function, mark, None) for function in functions for mark in (CONCURRENT, _COG_CONCURRENT))
    return next((most for most in marks if most is not None), None)


def is_streaming(*functions: Callable[..., Any]) -> bool:
    """Returns whether a function has @streaming. cog's decorator leaves no mark, so this looks for it in the source."""
    return any(getattr(f, STREAMING, False) or _has_cogs_mark(f) for f in functions)


def find_defaults(function: Callable[..., Any]) -> dict[str, bool]:
    """Returns for each parameter with cog's `Input(...)` whether the source names a default in it.

    The object itself does not tell: its default is None both without one and with `default=None`.
    """
    definition = _definition(function)
    if definition is None:
        return {}
    arguments, namespace = definition.args, getattr(function, "__globals__", {})
    placed = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(placed), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    calls = {
        name.arg: call for name, call in pairs if isinstance(call, ast.Call) and _is_cogs(call, "Input", namespace)
    }
    return {
        name: bool(call.args) or any(word.arg in ("default", None) for word in call.keywords)
        for name, call in calls.items()
    }


def _has_cogs_mark(function: Callable[..., Any]) -> bool:
    definition, namespace = _definition(function), getattr(function, "__globals__", {})
    return definition is not None and any(_is_cogs(mark, "streaming", namespace) for mark in definition.decorator_list)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, as of a compiled module
        return None
    first = tree.body[0]
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _is_cogs(expression: ast.expr, name: str, namespace: dict[str, Any]) -> bool:
    """Returns whether an expression is cog's `name`, called or not, under whatever name it was imported."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        target = getattr(namespace.get(expression.value.id), expression.attr, None)
    else:
        target = namespace.get(expression.id) if isinstance(expression, ast.Name) else None
    return getattr(target, "__name__", "") == name and getattr(target, "__module__", "").split(".")[0] == "cog"
