"""Reads the signatures of handlers: which kind one is, and what it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.errors import AppError

_ADVICE = "write it as (request), (request, context) or (request, context, stream)"


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


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    kind: HandlerKind
    takes_context: bool


def read_signature(function: Callable[..., Any], name: str, *, is_method: bool = False) -> HandlerSignature:
    """Finds out how a handler is called; `is_method`: its first parameter is its object. Raises AppError."""
    if inspect.isclass(function) or not callable(function):
        raise AppError(f"{name} is no function; register a class with @app.worker")
    names = _parameters(function, name)[is_method:]
    n_parameters = len(names)
    kind = _kind(function)
    if not 1 <= n_parameters <= 3:
        beside = " beside `self`" if is_method else ""
        raise AppError(f"{name} takes {n_parameters} parameters{beside}: {_ADVICE}")
    if n_parameters == 3:
        if names[-1] != "stream":
            raise AppError(f"{name} has a third parameter that is not called `stream`: {_ADVICE}")
        if kind is not HandlerKind.FUNCTION:
            raise AppError(f"{name} is a {kind.value}, which takes no `stream`: it yields its answers instead")
        kind = HandlerKind.STREAM
    return HandlerSignature(kind, takes_context=n_parameters > 1)


def _parameters(function: Callable[..., Any], name: str) -> list[str]:
    """Returns the names of the positional parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise AppError(f"{name} has a signature that cannot be read: wrap it in a function of (request)") from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise AppError(f"{name} takes *{parameter.name}, and what it gets must be plain: {_ADVICE}")
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise AppError(f"{name} needs the keyword argument {parameter.name!r}, which nobody gives it: {_ADVICE}")
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]


def _kind(function: Callable[..., Any]) -> HandlerKind:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):  # an object with a method __call__
        function = type(function).__call__
    if inspect.isasyncgenfunction(function):
        return HandlerKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return HandlerKind.COROUTINE
    return HandlerKind.GENERATOR if inspect.isgeneratorfunction(function) else HandlerKind.FUNCTION
