"""Applies an author's choices and limits to a shape, and refuses those that do not fit it."""

from __future__ import annotations

import re
from enum import Enum

from corosrv.base.errors import SignatureError
from corosrv.workers.worker.signatures.shapes import AnyOf, Fetched, ListOf, Nullable, OneOf, Scalar, Shape
from corosrv.workers.worker.types import FieldInfo


def limited(shape: Shape, info: FieldInfo) -> Shape:
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


def _is_file(shape: Shape) -> bool:
    match shape:
        case Nullable(inner) | ListOf(inner):
            return _is_file(inner)
        case AnyOf(members):
            return any(map(_is_file, members))
    return isinstance(shape, Fetched)


def _kinds(shape: Shape) -> set[type]:
    """Returns the types that values, or the members of lists, may have."""
    match shape:
        case Scalar(kind):
            return {kind}
        case Nullable(inner) | ListOf(inner):
            return _kinds(inner)
        case AnyOf(members):
            return set().union(*map(_kinds, members))
        case OneOf(values):
            return {type(value) for value in values}
        case _:
            return set()


def _check_pattern(regex: str) -> None:
    try:
        re.compile(regex)
    except re.error as error:
        raise SignatureError(f"the regex is none: {error}") from error


def _with_choices(shape: Shape, choices: list[object]) -> Shape:
    match shape:
        case Nullable(inner):
            return Nullable(_with_choices(inner, choices))
        case ListOf(item):
            return ListOf(_with_choices(item, choices))
        case OneOf():
            raise SignatureError("the type has choices of its own already")
    kinds = _kinds(shape)
    values = tuple(choice.value if isinstance(choice, Enum) else choice for choice in choices)
    if not values or any(type(value) not in kinds for value in values):
        names = " or ".join(sorted(kind.__name__ for kind in kinds)) or "of a type that allows it"
        raise SignatureError(f"choices have to be one or more values, each {names}")
    return OneOf(values)
