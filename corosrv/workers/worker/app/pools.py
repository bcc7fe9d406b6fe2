"""Groups the handlers of an application into pools, which share worker processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corosrv.base.errors import AppError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.job import DEFAULT_PRIORITY
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.app.base_worker import BaseWorker
from corosrv.workers.worker.app.signature import HandlerSignature

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
