"""An author's choices and limits, put where in a shape they belong, and refused where they make no sense."""

from __future__ import annotations

import re
from enum import Enum

from corosrv.errors import SignatureError
from corosrv.worker.signatures.shapes import AnyOf, Fetched, ListOf, Nullable, OneOf, Plain, Shape
from corosrv.worker.types import FieldInfo


def limited(shape: Shape, info: FieldInfo) -> Shape:
    """The shape with its choices in. Raises SignatureError for a limit that cannot hold for such values."""
    kinds = _kinds(shape)
    if (info.ge is not None or info.le is not None) and not kinds & {int, float}:
        raise SignatureError("ge and le are for numbers")
    if (info.min_length, info.max_length, info.regex) != (None, None, None) and str not in kinds:
        raise SignatureError("min_length, max_length and regex are for texts")
    if info.accept is not None and not _is_file(shape):
        raise SignatureError("accept is only valid on Path or File inputs")
    if info.regex is not None:
        _check_pattern(info.regex)
    return shape if info.choices is None else _chosen(shape, info.choices)


def _is_file(shape: Shape) -> bool:
    match shape:
        case Nullable(of) | ListOf(of):
            return _is_file(of)
        case AnyOf(members):
            return any(map(_is_file, members))
    return isinstance(shape, Fetched)


def _kinds(shape: Shape) -> set[type]:
    """The types that values, or the members of lists, may have."""
    match shape:
        case Plain(kind):
            return {kind}
        case Nullable(of) | ListOf(of):
            return _kinds(of)
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


def _chosen(shape: Shape, choices: list[object]) -> Shape:
    match shape:
        case Nullable(of):
            return Nullable(_chosen(of, choices))
        case ListOf(item):
            return ListOf(_chosen(item, choices))
        case OneOf():
            raise SignatureError("the type has choices of its own already")
    kinds = _kinds(shape)
    values = tuple(choice.value if isinstance(choice, Enum) else choice for choice in choices)
    if not values or any(type(value) not in kinds for value in values):
        names = " or ".join(sorted(kind.__name__ for kind in kinds)) or "of a type that allows it"
        raise SignatureError(f"choices have to be one or more values, each {names}")
    return OneOf(values)
