"""Groups the handlers of an application into pools, which share worker processes.

All plain functions are one pool, and each worker class, derived from `BaseWorker`, is one of its own. `read_signature`
finds out which kind a handler is, and what it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corosrv.base.errors import AppError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.app.typed_signature import HandlerKind, TypedSignature, kind_of, read_typed


class BaseWorker:
    """Keeps something between calls: derive from it, define `handle`, and register the class with `@app.worker`.

    There is one object of it in each worker process of its pool. Every method may be a coroutine function.
    """

    def on_start(self) -> Any:
        """Prepares the worker, before any request is taken. A worker whose on_start raises does not start."""

    def on_stop(self) -> Any:
        """Cleans up when the worker ends gracefully, after the last request. `on_cleanup` is accepted in its place."""

    def handle(self, request: Any, context: Any) -> Any:
        """Answers a request, in any of the ways in which a function may."""
        raise NotImplementedError(f"{type(self).__name__} has no method handle(self, request, context)")


Worker = BaseWorker  # the name that authors know


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


DEFAULT_POOL = "default"  # of all plain functions


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """Joins a function with the card of the name that it is called by."""

    card: HandlerCard
    signature: HandlerSignature
    function: Callable[..., Any]


class HandlerGroup:
    """Joins one function with the names that it is offered by, which share its slots."""

    def __init__(self, title: str, function: Callable[..., Any], signature: HandlerSignature) -> None:
        """`title`: what errors call the function."""
        self.title = title
        self.function = function
        self.signature = signature
        self.cards: list[HandlerCard] = []

    @property
    def concurrency(self) -> int:
        return self.cards[0].concurrency

    def add(self, card: HandlerCard) -> None:
        """Adds a name. Raises AppError if its options contradict those of another name."""
        if self.cards and card.concurrency != self.concurrency:
            raise AppError(
                f"{self.title} is registered with concurrency {self.concurrency} and {card.concurrency}: "
                "its names share their slots, so give all of them the same"
            )
        if self.cards and (card.batch is None) != (self.cards[0].batch is None):
            raise AppError(f"{self.title} is registered with `batch` and without: it gets either lists or requests")
        self.cards.append(card)


@dataclass
class Pool:
    """Holds handlers that share worker processes: all plain functions, or one worker class."""

    name: str
    worker_class: type[BaseWorker] | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    gpus: float = 0.0
    memory_mb: float = 0.0
    cold_start_ms: float | None = None
    priority: int = DEFAULT_PRIORITY
    groups: list[HandlerGroup] = field(default_factory=list)

    def cards(self) -> list[HandlerCard]:
        """Returns the cards of the handlers, numbered by their groups."""
        return [
            msgspec.structs.replace(card, group=number)
            for number, group in enumerate(self.groups)
            for card in group.cards
        ]

    def card(self) -> PoolCard:
        return PoolCard(
            self.name,
            self.cards(),
            self.min_workers,
            self.max_workers,
            self.gpus,
            self.memory_mb,
            self.cold_start_ms,
            self.priority,
        )

    def slot_groups(self) -> Iterator[HandlerGroup]:
        """Yields the group of each slot, in the order of the slots."""
        for group in self.groups:
            yield from [group] * group.concurrency

    def bind(self, worker: BaseWorker | None) -> list[BoundHandler]:
        """Returns the handlers in the order of cards(), to be called on the worker's object if there is one."""
        return [
            BoundHandler(card, group.signature, group.function if worker is None else worker.handle)
            for group, card in zip(
                (group for group in self.groups for _ in group.cards),
                self.cards(),
                strict=True,
            )
        ]


def stop_method(worker_class: type[BaseWorker]) -> str:
    """Returns the name of the method to call at the end. Raises AppError if the class has it by both names."""
    has_other_name = inspect.isroutine(getattr(worker_class, "on_cleanup", None))
    if has_other_name and worker_class.on_stop is not BaseWorker.on_stop:
        raise AppError(f"{worker_class.__qualname__} defines both on_stop and on_cleanup: define one of them")
    return "on_cleanup" if has_other_name else "on_stop"
