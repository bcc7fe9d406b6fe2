"""Reads handlers that take their inputs as parameters, as (a: int, b: list[float]) -> float, and calls them.

`kind_of` tells how a handler is run, and whether it streams.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, get_args, get_origin

from corosrv.base.errors import AppError, CallRefused, InvalidTensor, OutputFailed, SignatureError
from corosrv.formats.tensors import TensorSpec
from corosrv.workers.worker.app.context import AsyncContext, Context
from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.typed_values import TypedValue, typed_value


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


OUTPUT = "output"
TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"  # of models that generate text

_MISSING = inspect.Parameter.empty
_ITERATORS = {
    HandlerKind.GENERATOR: (abc.Iterator, abc.Iterable, abc.Generator),
    HandlerKind.ASYNC_GENERATOR: (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator),
}
_ANY_ITERATOR = tuple(kind for kinds in _ITERATORS.values() for kind in kinds if kind is not abc.Iterable)


class _Role(Enum):
    REQUEST = auto()
    CONTEXT = auto()
    UNSAID = auto()  # no annotation, or one that says nothing
    INPUT = auto()


@dataclass(frozen=True, slots=True)
class _Parameter:
    """Holds one parameter in the place where it is called. `value`: None for the context."""

    name: str
    value: TypedValue | None
    is_optional: bool
    default: Any
    is_positional: bool

    def argument(self, request: ModelInferRequest, context: Any) -> Any:
        """Returns what the handler gets. Raises CallRefused for an input that is missing, or that does not fit."""
        if self.value is None:
            return context
        if self.is_optional and request.get_input(self.name) is None:
            return self.default
        tensor = request[self.name]
        try:
            return self.value.read(tensor)
        except (ValueError, RecursionError) as error:
            raise CallRefused(f"the input {self.name!r} does not fit: {error}") from None


@dataclass(frozen=True, slots=True)
class _Output:
    name: str
    value: TypedValue
    is_optional: bool


@dataclass(frozen=True, slots=True)
class TypedSignature:
    """Says which inputs a handler takes as parameters, and which outputs it returns.

    `names_outputs`: it returns a dict of several outputs. `makes_answers`: it returns a ModelInferResponse.
    """

    parameters: tuple[_Parameter, ...]
    returned: tuple[_Output, ...]
    names_outputs: bool
    makes_answers: bool

    @property
    def takes_context(self) -> bool:
        return any(parameter.value is None for parameter in self.parameters)

    def inputs(self) -> list[TensorSpec]:
        return [
            parameter.value.spec(parameter.name, parameter.is_optional)
            for parameter in self.parameters
            if parameter.value is not None
        ]

    def outputs(self) -> list[TensorSpec]:
        return [output.value.spec(output.name, output.is_optional) for output in self.returned]

    def call(self, function: Callable[..., Any], request: ModelInferRequest, context: Any) -> Any:
        """Calls the handler. Raises CallRefused for an input that does not fit, and what the handler raises."""
        arguments, keywords = [], {}
        for parameter in self.parameters:
            value = parameter.argument(request, context)
            if parameter.is_positional:
                arguments.append(value)
            else:
                keywords[parameter.name] = value
        return function(*arguments, **keywords)

    def outputs_of(self, card_name: str, value: Any) -> ModelInferResponse | Mapping[str, Any]:
        """Returns what answer_of() takes for a value that the handler returned. Raises OutputFailed."""
        if self.makes_answers or isinstance(value, ModelInferResponse):
            return typing.cast(ModelInferResponse, value)
        if self.names_outputs and not isinstance(value, Mapping):
            raise OutputFailed(f"{card_name} returned a {type(value).__name__}: return a dict of its outputs")
        if not self.returned and value is not None:
            raise OutputFailed(f"{card_name} returned a {type(value).__name__}, and is annotated to return None")
        values = value if self.names_outputs else {output.name: value for output in self.returned}
        known = {output.name: output for output in self.returned}
        return {
            name: _write_output(card_name, known.get(name), content)
            for name, content in values.items()
            if content is not None or name not in known or not known[name].is_optional
        }


def _write_output(card_name: str, output: _Output | None, content: Any) -> Any:
    """Returns an output for answer_of(), which refuses those that are unknown. Raises OutputFailed."""
    if output is None:
        return content
    try:
        return output.value.write(output.name, content)
    except InvalidTensor:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise OutputFailed(f"{card_name}: the output {output.name!r} does not fit: {error}") from error


# What is read when a handler is registered.


def read_typed(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter], kind: HandlerKind, title: str, advice: str
) -> TypedSignature | None:
    """Reads a signature; None for a handler that takes requests. `advice`: how signatures are written.

    Raises AppError, which names the function by its `title`, for a signature that is neither.
    """
    hints = _Hints(function)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    free = [parameter for parameter in parameters if parameter.name not in bound]
    roles = {parameter.name: _role(parameter.name, hints.evaluate(parameter.annotation)) for parameter in free}
    if not _takes_inputs(free, roles, hints):
        return None
    named = [parameter for parameter in free if not _is_authors_own(parameter, roles)]
    for parameter in named:
        if roles[parameter.name] in (_Role.REQUEST, _Role.UNSAID):
            problem = hints.problem(parameter.annotation) or "is no input by its type"
            raise AppError(f"{title} takes inputs by their types, and {parameter.name!r} {problem}: {advice}")
    read = tuple(_parameter(parameter, roles[parameter.name], hints, title) for parameter in named)
    takes_text = any(one.name == TEXT_INPUT and hints.evaluate(one.annotation) is str for one in named)
    return _with_returned(read, hints, kind, title, takes_text)


class _Hints:
    """Evaluates the annotations of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        inner: Any = inspect.unwrap(plain_function(function))
        inner = getattr(inner, "__func__", inner)
        self._globals = getattr(inner, "__globals__", {})
        self.returned = getattr(inner, "__annotations__", {}).get("return", _MISSING)

    def evaluate(self, annotation: Any) -> Any:
        """Returns an annotation's value; `empty` for none, or one that cannot be read."""
        return self._evaluated(annotation)[0]

    def problem(self, annotation: Any) -> str:
        """Says why an annotation has no value; empty if it has one."""
        return "has no type" if annotation is _MISSING else self._evaluated(annotation)[1]

    def _evaluated(self, annotation: Any) -> tuple[Any, str]:
        if annotation is _MISSING:
            return _MISSING, ""
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(holder, self._globals, include_extras=True)["it"], ""
        except Exception as error:  # evaluating annotations runs the author's code, which may raise anything
            return _MISSING, f"has the type {annotation!r:.80}, which cannot be read ({error})"


def _role(name: str, hint: Any) -> _Role:
    if hint in (_MISSING, Any, object):
        return _Role.CONTEXT if name == "context" else _Role.UNSAID
    members = [member for member in get_args(hint) if member is not type(None)] if get_args(hint) else [hint]
    if all(member in (Context, AsyncContext) for member in members):
        return _Role.CONTEXT
    if all(isinstance(member, type) and issubclass(member, ModelInferRequest) for member in members):
        return _Role.REQUEST
    says_nothing = get_origin(hint) in (list, abc.Sequence, None) and members[0] in (Any, list, abc.Sequence)
    return _Role.UNSAID if name in ("requests", "contexts") and says_nothing else _Role.INPUT


def _takes_inputs(parameters: Sequence[inspect.Parameter], roles: Mapping[str, _Role], hints: _Hints) -> bool:
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    inputs = [parameter for parameter in positional or parameters if roles[parameter.name] is _Role.INPUT]
    if not inputs or roles[parameters[0].name] is _Role.INPUT:
        return bool(inputs)
    return any(
        _is_readable(hints.evaluate(parameter.annotation)) for parameter in inputs
    )  # or a context of another type


def _is_readable(hint: Any) -> bool:
    try:
        typed_value(_without_none(hint)[0])
    except SignatureError:
        return False
    return True


def _is_authors_own(parameter: inspect.Parameter, roles: Mapping[str, _Role]) -> bool:
    """Returns whether a parameter is a keyword of the author's, which callers do not give."""
    has_default = parameter.default is not _MISSING
    return has_default and parameter.kind is parameter.KEYWORD_ONLY and roles[parameter.name] is not _Role.INPUT


def _parameter(parameter: inspect.Parameter, role: _Role, hints: _Hints, title: str) -> _Parameter:
    is_positional = parameter.kind is parameter.POSITIONAL_ONLY
    if role is _Role.CONTEXT:
        return _Parameter(parameter.name, None, False, None, is_positional)
    hint, is_nullable = _without_none(hints.evaluate(parameter.annotation))
    has_default = parameter.default is not _MISSING
    default = parameter.default if has_default else None
    value = _value(hint, f"{title}: the input {parameter.name!r}")
    return _Parameter(parameter.name, value, has_default or is_nullable, default, is_positional)


def _with_returned(
    parameters: tuple[_Parameter, ...], hints: _Hints, kind: HandlerKind, title: str, takes_text: bool
) -> TypedSignature:
    hint = hints.evaluate(hints.returned)
    if hint is _MISSING:
        problem = hints.problem(hints.returned)
        raise AppError(f"{title} takes inputs by their types, and what it returns {problem}: annotate it, as -> float")
    hint = _yielded(hint, kind, title)
    if hint in (Any, object, ModelInferResponse):
        return TypedSignature(parameters, (), False, True)
    if hint is type(None):
        return TypedSignature(parameters, (), False, False)
    if hasattr(hint, "__required_keys__"):
        return TypedSignature(parameters, _keys(hint, title), True, False)
    hint, is_nullable = _without_none(hint)
    name = TEXT_OUTPUT if takes_text and hint is str else OUTPUT
    value = _value(hint, f"{title}: what it returns")
    return TypedSignature(parameters, (_Output(name, value, is_nullable),), False, False)


def _yielded(hint: Any, kind: HandlerKind, title: str) -> Any:
    """Returns the type of each answer. Raises AppError where a generator is not annotated as one, or another is."""
    origin = get_origin(hint) or hint
    if kind in _ITERATORS and hint not in (Any, object):
        if origin not in _ITERATORS[kind] or not get_args(hint):
            example = "AsyncIterator[str]" if kind.is_async else "Iterator[str]"
            raise AppError(f"{title} is a {kind.value}: annotate what it yields, as -> {example}")
        return get_args(hint)[0]
    if kind not in _ITERATORS and origin in _ANY_ITERATOR:
        raise AppError(f"{title} is a {kind.value}, and annotated to return an iterator: `yield` each answer")
    return hint


def _keys(record: Any, title: str) -> tuple[_Output, ...]:
    """Returns the outputs that a TypedDict names."""
    outputs = []
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        if getattr(get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
            (hint,) = get_args(hint)
        inner, is_nullable = _without_none(hint)
        value = _value(inner, f"{title}: the output {name!r}")
        outputs.append(_Output(name, value, is_nullable or name not in record.__required_keys__))
    return tuple(outputs)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether that was in it."""
    members = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else ()
    others = tuple(member for member in members if member is not type(None))
    if len(others) == len(members):
        return hint, False
    return typing.Union[others], True  # noqa: UP007 - of members that are known at run time


def _value(hint: Any, subject: str) -> TypedValue:
    try:
        return typed_value(hint)
    except SignatureError as error:
        raise AppError(f"{subject}: {error}") from error
