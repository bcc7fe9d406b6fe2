"""Reads the signatures of handlers: which kind one is, and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import AppError
from corosrv.workers.worker.app.handler_kind import HandlerKind, kind_of
from corosrv.workers.worker.app.typed_signature import TypedSignature, read_typed

_ADVICE = (
    "write it as (request), (request, context) or (request, context, stream), "
    "or with its inputs and output in types, as (a: int, b: list[float]) -> float"
)


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """Says how a handler is called. `typed`: its own inputs and output; None if it takes requests."""

    kind: HandlerKind
    takes_context: bool
    typed: TypedSignature | None = None


def read_signature(function: Callable[..., Any], name: str, *, is_method: bool = False) -> HandlerSignature:
    """Finds out how a handler is called; `is_method`: its first parameter is its object. Raises AppError."""
    if inspect.isclass(function) or not callable(function):
        raise AppError(f"{name} is no function; register a class with @app.worker")
    parameters = _parameters(function, name)[is_method:]
    kind = kind_of(function)
    typed = read_typed(function, parameters, kind, name, _ADVICE)
    if typed is not None:
        return HandlerSignature(kind, typed.takes_context, typed)
    names = _positional(parameters, name)
    n_parameters = len(names)
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


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise AppError(f"{name} has a signature that cannot be read: wrap it in a function of (request)") from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise AppError(f"{name} takes *{parameter.name}, and what it gets must be plain: {_ADVICE}")
    return parameters


def _positional(parameters: Sequence[inspect.Parameter], name: str) -> list[str]:
    """Returns the names of the positional parameters. Raises AppError for another that needs a value."""
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise AppError(f"{name} needs the keyword argument {parameter.name!r}, which nobody gives it: {_ADVICE}")
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
