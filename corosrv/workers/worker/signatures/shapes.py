"""Shapes: the values that an input or output may have, as a tree that is read from annotations once.

Cog's coders convert values of an author's own types to JSON objects and back. They are known to cog's registry alone,
so without cog there are none.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, Protocol


class Coder(Protocol):
    def encode(self, value: Any) -> Any:
        """Converts a value to a JSON object."""

    def decode(self, value: Any) -> Any:
        """Converts a JSON object to a value."""


def register(module: ModuleType) -> None:
    """Registers all coders that a predictor's module defines or imports, also those in modules that it imports."""
    base = _base()
    if base is None:
        return
    for place in (module, *(value for value in vars(module).values() if inspect.ismodule(value))):
        for member in tuple(vars(place).values()):
            if isinstance(member, type) and issubclass(member, base) and member is not base:
                base.register(member)


def coder_of(kind: Any) -> Coder | None:
    """Returns the coder for values of this type or annotation, or None."""
    base = _base()
    return None if base is None else base.lookup(kind)


def _base() -> Any:
    """Returns Cog's class Coder, which holds the registry, if the predictor has imported it."""
    return getattr(sys.modules.get("cog.coder"), "Coder", None)


def is_framework(module: str) -> bool:
    return module.split(".")[0] == "cog" or module.startswith("corosrv.workers.worker.")


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
