"""Reads a predictor's output type from its return annotation and its code."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from corosrv.workers.worker.signatures.annotations import output_shape
from corosrv.workers.worker.signatures.framework import is_framework
from corosrv.workers.worker.signatures.shapes import ListOf, Scalar, Shape

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
    """Returns the annotation of the awaited value, if the annotation is of an awaitable."""
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
