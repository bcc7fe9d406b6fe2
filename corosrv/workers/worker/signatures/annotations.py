"""Reads annotations as shapes: those of a predictor's inputs, and its output type, from its annotation and its code.

Recognises other packages' types by their attributes, so none has to be installed.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import pathlib
import types
import typing
from collections import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, get_args, get_origin

from corosrv.base.errors import SignatureError
from corosrv.workers.worker.predictor import File, Path
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
    coder_of,
    is_framework,
    nullable,
)

_SCALARS = (str, int, float, bool)
_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")  # of a TypedDict's keys
_OUTPUT_LISTS = (*_LISTS, tuple, set, frozenset, abc.Set, abc.MutableSet)


def input_shape(annotation: Any) -> Shape:
    """Reads an input's annotation. Raises SignatureError for a type that no JSON value can be converted to."""
    return _Reading(_input_class, _LISTS).shape(annotation)


def output_shape(annotation: Any, ancestors: tuple[type, ...] = ()) -> Shape:
    """Reads an output. An unknown type may be anything, a record within itself (see `ancestors`) any object."""
    return _Reading(lambda kind: _output_class(kind, ancestors), _OUTPUT_LISTS).shape(annotation)


@dataclasses.dataclass(frozen=True)
class _Reading:
    """The part of reading that inputs and outputs share."""

    of_class: Callable[[Any], Shape]
    lists: tuple[Any, ...]

    def shape(self, annotation: Any) -> Shape:
        if isinstance(annotation, typing.NewType):
            return self.shape(annotation.__supertype__)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is typing.Annotated:
            return self._annotated(arguments)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(arguments)
        if annotation in self.lists or origin in self.lists:
            return ListOf(self._union(tuple(argument for argument in arguments if argument is not ...)))
        if annotation in _DICTS or origin in _DICTS:
            return self._dict(arguments)
        if annotation is Any or annotation is object:
            return Anything()
        if getattr(origin, "_name", None) in _QUALIFIERS:
            return self.shape(arguments[0])
        if annotation in _SCALARS:
            return Scalar(annotation)
        return self.of_class(origin or annotation)

    def _dict(self, arguments: tuple[Any, ...]) -> Shape:
        if not arguments:
            return AnyObject()
        value = self.shape(arguments[1])
        return AnyObject() if value == Anything() else DictOf(value)

    def _annotated(self, arguments: tuple[Any, ...]) -> Shape:
        if not any(type(mark).__name__ in ("_Opaque", "_OpaqueMarker") for mark in arguments[1:]):
            return self.shape(arguments[0])
        return self._opaque(arguments[0])

    def _opaque(self, annotation: Any) -> Shape:
        members = get_args(annotation)
        if type(None) in members and len(members) == 2:
            return nullable(self._opaque(members[0] if members[1] is type(None) else members[1]))
        return ListOf(AnyObject()) if (get_origin(annotation) or annotation) is list else AnyObject()

    def _union(self, members: tuple[Any, ...]) -> Shape:
        """Reads a union; one without members is anything."""
        shapes = tuple(dict.fromkeys(self.shape(member) for member in members if member is not type(None)))
        if not shapes or Anything() in shapes:
            return Anything()
        shape = shapes[0] if len(shapes) == 1 else AnyOf(shapes)
        return nullable(shape) if type(None) in members else shape


def _literal(values: tuple[Any, ...]) -> Shape:
    for value in values:
        if value is not None and type(value) not in _SCALARS:
            raise SignatureError(f"a Literal of {value!r} has no JSON value")
    shape = OneOf(tuple(value for value in values if value is not None))
    return nullable(shape) if None in values else shape


def _is_typed_dict(kind: type) -> bool:
    return issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def _input_class(kind: Any) -> Shape:
    if isinstance(kind, type):
        if _is_typed_dict(kind):
            return AnyObject()
        if issubclass(kind, Enum):
            return _enum(kind)
        if issubclass(kind, os.PathLike):
            return Fetched(kind if issubclass(kind, pathlib.Path) else Path)
        if issubclass(kind, io.IOBase):
            return Fetched(File, is_open=True)
        if hasattr(kind, "get_secret_value"):
            return Hidden(kind)
    if (coder := coder_of(kind)) is not None:
        return Coded(coder)
    raise SignatureError(f"the type {getattr(kind, '__name__', kind)} cannot be an input")


def _output_class(kind: Any, ancestors: tuple[type, ...]) -> Shape:
    if not isinstance(kind, type):
        return Anything()
    if kind in ancestors or coder_of(kind) is not None:
        return AnyObject()
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "get_secret_value"):
        always = {field.name: _has_no_default(field) for field in dataclasses.fields(kind)}
        return _record(kind, always, ancestors)
    if isinstance(fields := getattr(kind, "model_fields", None), dict):  # pydantic's models
        return _record(kind, {name: field.is_required() for name, field in fields.items()}, ancestors)
    if _is_typed_dict(kind):
        keys: Any = kind
        always = {name: name in keys.__required_keys__ for name in keys.__annotations__}
        return _record(kind, always, ancestors)
    try:
        return _input_class(kind)
    except SignatureError:
        return Anything()


def _enum(kind: type[Enum]) -> Shape:
    values = tuple(member.value for member in kind)
    if not values or any(type(value) not in _SCALARS for value in values):
        raise SignatureError(f"the values of {kind.__name__} are not all texts, numbers or truth values")
    return OneOf(values, kind)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _record(kind: type, always: dict[str, bool], ancestors: tuple[type, ...]) -> Shape:
    """Reads the fields of a record; `always`: their names, and whether each is required."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # evaluating annotations runs the author's code, which may raise anything
        raise SignatureError(f"the annotations of {kind.__name__} cannot be read: {error}") from error
    # As in Cog's documents, a key of a TypedDict that is required stays so where its value may be null.
    may_be_null = _is_typed_dict(kind)
    shapes = {name: output_shape(hints.get(name, Any), (*ancestors, kind)) for name in always}
    fields = (
        (name, shape, always[name] and (may_be_null or not isinstance(shape, Nullable)))
        for name, shape in shapes.items()
    )
    return Record(kind.__name__, tuple(fields))


_AWAITED = (abc.Awaitable, abc.Coroutine)
_ASYNC_ITERATORS = (abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable)
_ITERATORS = (abc.Iterator, abc.Generator, *_ASYNC_ITERATORS)
_CONCATENATING = ("ConcatenateIterator", "AsyncConcatenateIterator")

AnyFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OutputType:
    """The type of a prediction's output: one value of `shape`, or many."""

    shape: Shape
    is_iterator: bool = False
    is_concatenated: bool = False


def output_type(annotation: Any, function: AnyFunction) -> OutputType:
    """Reads a `function`'s output type. Decorators included: these may join yielded values. Raises SignatureError.

    A function with `yield` gives many values, whether the annotation is of one, of a list of them, or missing.
    """
    output = _annotated(_awaited(annotation))
    if output.is_iterator or not _is_generator(function):
        return output
    item = output.shape.item if isinstance(output.shape, ListOf) else output.shape
    return replace(output, shape=item, is_iterator=True)


def is_async(annotation: Any, functions: Sequence[AnyFunction]) -> bool:
    """Returns whether to call it on an event loop: it is written with `async`, or returns what is."""
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in map(_called, functions)):
        return True
    origin = _origin(annotation)
    is_promised = origin in (*_AWAITED, *_ASYNC_ITERATORS) or _concatenates(origin) == "AsyncConcatenateIterator"
    return is_promised and not any(map(_is_generator, functions))


def _is_generator(function: AnyFunction) -> bool:
    called = _called(function)
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _called(function: AnyFunction) -> AnyFunction:
    """Returns the function that a call runs: for an object, its class's __call__."""
    is_object = not inspect.isroutine(function) and not isinstance(function, type | partial)
    return type(function).__call__ if is_object else function


def _origin(annotation: Any) -> Any:
    return typing.get_origin(annotation) or annotation


def _awaited(annotation: Any) -> Any:
    if _origin(annotation) not in _AWAITED:
        return annotation
    return (Any, *typing.get_args(annotation))[-1]


def _annotated(annotation: Any) -> OutputType:
    origin = _origin(annotation)
    is_concatenated = _concatenates(origin) is not None
    if origin not in _ITERATORS and not is_concatenated:
        return OutputType(output_shape(annotation))
    item = (*typing.get_args(annotation), Any)[0]
    shape = Scalar(str) if is_concatenated and item is Any else output_shape(item)
    return OutputType(shape, is_iterator=True, is_concatenated=is_concatenated)


def _concatenates(origin: Any) -> str | None:
    """Returns the name of a ConcatenateIterator of this package or of cog; None for other types."""
    name = getattr(origin, "__name__", "")
    return name if name in _CONCATENATING and is_framework(origin.__module__) else None
