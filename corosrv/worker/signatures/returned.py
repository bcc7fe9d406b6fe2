"""What a predictor gives, read from its return annotation and from how it is written."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from corosrv.worker.signatures.annotations import output_shape
from corosrv.worker.signatures.framework import is_framework
from corosrv.worker.signatures.shapes import ListOf, Plain, Shape

_AWAITED = (abc.Awaitable, abc.Coroutine)
_ASYNC_ITERATORS = (abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable)
_ITERATORS = (abc.Iterator, abc.Generator, *_ASYNC_ITERATORS)
_CONCATENATING = ("ConcatenateIterator", "AsyncConcatenateIterator")

AnyFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OutputType:
    """What comes of a prediction: one value of `shape`, or many."""

    shape: Shape
    is_iterator: bool = False
    is_concatenated: bool = False


def output_type(annotation: Any, function: AnyFunction) -> OutputType:
    """`function`: as decorators left it, since these may join what the author's own yields. Raises SignatureError.

    One with `yield` in it gives many values, also where the annotation is of each, of a list of them, or missing.
    """
    output = _annotated(_awaited(annotation))
    if output.is_iterator or not _is_generator(function):
        return output
    item = output.shape.item if isinstance(output.shape, ListOf) else output.shape
    return replace(output, shape=item, is_iterator=True)


def is_async(annotation: Any, functions: Sequence[AnyFunction]) -> bool:
    """Whether it has to be called on an event loop: written with `async`, or handing on what somebody else wrote so."""
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in map(_called, functions)):
        return True
    origin = _origin(annotation)
    is_promised = origin in (*_AWAITED, *_ASYNC_ITERATORS) or _concatenates(origin) == "AsyncConcatenateIterator"
    return is_promised and not any(map(_is_generator, functions))


def _is_generator(function: AnyFunction) -> bool:
    called = _called(function)
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _called(function: AnyFunction) -> AnyFunction:
    """What runs when it is called: of an object, its method."""
    is_object = not inspect.isroutine(function) and not isinstance(function, type | partial)
    return type(function).__call__ if is_object else function


def _origin(annotation: Any) -> Any:
    return typing.get_origin(annotation) or annotation


def _awaited(annotation: Any) -> Any:
    """What is there in the end of a value that is awaited first."""
    if _origin(annotation) not in _AWAITED:
        return annotation
    return (Any, *typing.get_args(annotation))[-1]


def _annotated(annotation: Any) -> OutputType:
    origin = _origin(annotation)
    is_concatenated = _concatenates(origin) is not None
    if origin not in _ITERATORS and not is_concatenated:
        return OutputType(output_shape(annotation))
    item = (*typing.get_args(annotation), Any)[0]
    shape = Plain(str) if is_concatenated and item is Any else output_shape(item)
    return OutputType(shape, is_iterator=True, is_concatenated=is_concatenated)


def _concatenates(origin: Any) -> str | None:
    """The name of one of this package's, or of cog's, iterators whose texts are to be shown as one."""
    name = getattr(origin, "__name__", "")
    return name if name in _CONCATENATING and is_framework(origin.__module__) else None
