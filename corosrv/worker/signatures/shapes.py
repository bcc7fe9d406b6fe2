"""What values an input or output may have, as a tree: read from annotations once, then asked by everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.worker.signatures.coders import Coder


@dataclass(frozen=True, slots=True)
class Plain:
    """A text, number or truth value."""

    kind: type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file, sent as an address. `make`: what the author wants, of a local path; `is_open`: it has to be closed."""

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
    """A JSON object that a coder of the author's makes a value of."""

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
    """An object of these fields, only as an output. The third of each: whether it is always there."""

    name: str
    fields: tuple[tuple[str, Shape, bool], ...]


@dataclass(frozen=True, slots=True)
class Nullable:
    """The same or None."""

    of: Shape


Shape = Plain | Fetched | Hidden | Anything | AnyObject | Coded | ListOf | DictOf | AnyOf | OneOf | Record | Nullable


def nullable(shape: Shape) -> Shape:
    """What has no say about its values allows None by itself."""
    return shape if isinstance(shape, Nullable | Anything) else Nullable(shape)
