"""Shapes: the values that an input or output may have, as a tree that is read from annotations once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.workers.worker.signatures.coders import Coder


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, number or truth value."""

    kind: type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file, sent as an address. `make` turns a local path into the author's type; `is_open`: it has to be closed."""

    make: Callable[[str], Any]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Hidden:
    """A secret."""

    make: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value."""


@dataclass(frozen=True, slots=True)
class AnyObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A JSON object that an author's coder converts to a value."""

    coder: Coder


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Shape


@dataclass(frozen=True, slots=True)
class DictOf:
    """An object of any keys."""

    value: Shape


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A union."""

    members: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these JSON values; with `enum` the author gets its member."""

    values: tuple[Any, ...]
    enum: type[Enum] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An object of these fields, only as an output. The third of each: whether it is required."""

    name: str
    fields: tuple[tuple[str, Shape, bool], ...]


@dataclass(frozen=True, slots=True)
class Nullable:
    """A value of the inner shape, or None."""

    inner: Shape


Shape = Scalar | Fetched | Hidden | Anything | AnyObject | Coded | ListOf | DictOf | AnyOf | OneOf | Record | Nullable


def nullable(shape: Shape) -> Shape:
    """Makes a shape accept None, unless it does already."""
    return shape if isinstance(shape, Nullable | Anything) else Nullable(shape)
