"""Tells the kinds of handlers apart: how one is run, and whether it streams."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any


class HandlerKind(Enum):
    FUNCTION = "function"
    COROUTINE = "coroutine function"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"
    STREAM = "function with a stream"

    @property
    def is_async(self) -> bool:
        return self in (HandlerKind.COROUTINE, HandlerKind.ASYNC_GENERATOR)

    @property
    def is_stream(self) -> bool:
        """True if it may give several answers."""
        return self not in (HandlerKind.FUNCTION, HandlerKind.COROUTINE)


def plain_function(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that the author wrote: within partials, and the method of an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler):  # an object with a method __call__
        handler = type(handler).__call__
    return handler


def kind_of(handler: Callable[..., Any]) -> HandlerKind:
    """Returns the kind of a handler; STREAM is told by its parameters, and not here."""
    function = plain_function(handler)
    if inspect.isasyncgenfunction(function):
        return HandlerKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return HandlerKind.COROUTINE
    return HandlerKind.GENERATOR if inspect.isgeneratorfunction(function) else HandlerKind.FUNCTION
