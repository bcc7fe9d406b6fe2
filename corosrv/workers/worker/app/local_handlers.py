"""Finds the handlers of an application as a server does, in the process of a test, and starts their workers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from corosrv.base.errors import Conflict, NotFound
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.dispatch.capability import parse_preferences, parse_query, weigh
from corosrv.workers.dispatch.versions import default_card
from corosrv.workers.worker.app.base_worker import BaseWorker
from corosrv.workers.worker.app.pools import BoundHandler, Pool


class LocalHandlers:
    """Owns the objects of the worker classes, each started when a call needs it. Any thread."""

    def __init__(self, pools: Sequence[Pool], complete: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """`complete`: runs a coroutine to its end."""
        self._pools = pools
        self._complete = complete
        self._workers: dict[str, BaseWorker] = {}
        self._lock = threading.Lock()

    def find(self, name: str, version: str, *, is_model: bool = False) -> BoundHandler:
        """Returns the handler of a model, or unless `is_model` of a capability's function. Raises NotFound.

        Without a version it is the one that a server would choose.
        """
        named = [card for _, card in self._cards() if card.name == name and (not is_model or card.capability is None)]
        card = default_card(card for card in named if version in ("", card.version))
        if card is None:
            raise NotFound(f"the application has no handler {name!r}" + (f" version {version!r}" if version else ""))
        return self._bound(card)

    def match(self, query: Mapping[str, object], prefer: Mapping[str, float], is_fuzzy: bool) -> BoundHandler:
        """Returns the handler whose capability fits best. Raises NotFound, Refused for a wrong query, and Conflict."""
        conditions, preferences = parse_query(query), parse_preferences(prefer)
        offered = [card for _, card in self._cards() if card.capability is not None]
        matches = [card for card in offered if conditions.matches(card.capability or {})]
        if not matches and is_fuzzy:
            matches = [card for card in offered if conditions.matches(card.capability or {}, True)]
            if len(matches) > 1:
                raise Conflict(f"the fuzzy query is satisfied by {matches[0].name!r} and {matches[1].name!r}")
        if not matches:
            raise NotFound(f"no capability of the application has {dict(query)}")

        def rank(card: HandlerCard) -> tuple[float, ...]:
            capability = card.capability or {}
            return (-weigh(preferences, capability), card.priority, conditions.count_extra(capability))

        return self._bound(min(matches, key=rank))

    def _cards(self) -> Iterator[tuple[Pool, HandlerCard]]:
        for pool in self._pools:
            for card in pool.cards():
                yield pool, card

    def _bound(self, card: HandlerCard) -> BoundHandler:
        pool = next(pool for pool, other in self._cards() if other.key == card.key)
        return next(handler for handler in pool.bind(self._worker_of(pool)) if handler.card.key == card.key)

    def _worker_of(self, pool: Pool) -> BaseWorker | None:
        """Returns the started object of a worker class, or None for plain functions. Waits for its start."""
        if pool.worker_class is None:
            return None
        with self._lock:
            if pool.name not in self._workers:
                worker = pool.worker_class()
                result = worker.on_start()
                if inspect.iscoroutine(result):
                    self._complete(result)
                self._workers[pool.name] = worker
            return self._workers[pool.name]
