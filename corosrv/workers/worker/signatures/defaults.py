"""Converts an input's default to the JSON value that a client could send instead."""

from __future__ import annotations

import json
import os
import re
from enum import Enum
from typing import Any

from corosrv.base.errors import SignatureError
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
    Scalar,
    Shape,
)
from corosrv.workers.worker.types import MISSING, STARS, FieldInfo


def as_json(shape: Shape, info: FieldInfo) -> Any:
    """Returns the default as a JSON value; MISSING if the input has none.

    Stars stand for a secret's default. Raises SignatureError for a default that the input would refuse.
    """
    if info.default is MISSING or info.default is None:
        return info.default
    return _value(shape, info.default, info)


def _value(shape: Shape, value: Any, info: FieldInfo) -> Any:
    match shape:
        case Nullable(inner):
            return None if value is None else _value(inner, value, info)
        case Scalar(kind):
            return _scalar(kind, value, info)
        case OneOf(values):
            return _choice(values, value)
        case ListOf(item) if isinstance(value, list | tuple):
            return [_value(item, member, info) for member in value]
        case DictOf(inner) if isinstance(value, dict):
            return {key: _value(inner, member, info) for key, member in value.items()}
        case AnyOf(members):
            return _member(members, value, info)
        case Fetched() if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        case Hidden() if isinstance(value, str) or hasattr(value, "get_secret_value"):
            return STARS
        case Anything():
            return _json(value)
        case Coded(coder):
            return _json(value if isinstance(value, dict) else coder.encode(value))
        case AnyObject() if isinstance(value, dict):
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


def _member(members: tuple[Shape, ...], value: Any, info: FieldInfo) -> Any:
    for member in sorted(members, key=lambda member: member != Scalar(type(value))):
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
