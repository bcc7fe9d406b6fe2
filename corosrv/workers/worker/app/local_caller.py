"""Runs handlers in the process of a test with what a server gives them: calls of each other, and objects.

Handlers are found as a server finds them; the object of a worker class is started when a call needs it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

from corosrv.base.errors import Conflict, CorosrvError, NotFound
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.dispatch.capability import parse_preferences, parse_query, weigh
from corosrv.workers.dispatch.registry import default_card
from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire.calls import ObjectAnswer
from corosrv.workers.wire.faults import Fault, error_of_failure, failure_kind
from corosrv.workers.worker.app.context import OutgoingCall
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, MakeObjectAsk, ObjectReply, Objects
from corosrv.workers.worker.app.pools import BaseWorker, BoundHandler, Pool
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.parent.call_asks import ObjectAsks


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


class RunLocalCall(Protocol):
    """Runs what a handler calls."""

    def __call__(self, call: OutgoingCall, caller: LocalCaller) -> list[ModelInferResponse]:
        """Returns all answers. Waits, and raises what the call ends in."""


class LocalCaller:
    """Fulfils Caller for one call. `waiting`: the groups of the handlers that wait for it, its own one last."""

    def __init__(
        self, run: RunLocalCall, store: ObjectStore, signal: EndSignal, waiting: tuple[tuple[str, int], ...]
    ) -> None:
        self._run = run
        self._objects = ObjectAsks(store, self._keep)
        self._replies: list[ObjectReply] = []
        self.signal = signal
        self.waiting = waiting

    def _keep(self, answer: ObjectAnswer, fds: Sequence[int]) -> None:
        self._replies.append((answer, tuple(map(os.dup, fds))))  # as a message has descriptors of its own

    def ask(self, make_message: MakeObjectAsk, fds: Sequence[int]) -> ObjectReply:
        self.signal.check()
        self._objects.on_message(make_message(1), tuple(map(os.dup, fds)))
        return self._replies.pop()

    @property
    def objects(self) -> Objects:
        return Objects(self.ask)

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        return iter(self.answers(call))

    def answers(self, call: OutgoingCall) -> list[ModelInferResponse]:
        """Returns the answers of a call. Raises errors as a server tells them: HandlerFailed for the unexpected."""
        self.signal.check()
        try:
            return self._run(call, self)
        except Exception as error:
            self.signal.check()
            raise _as_known(error) from error

    def close(self) -> None:
        """Releases the objects that the call has read."""
        self._objects.close()


class LocalAsyncCaller:
    """Fulfils AsyncCaller for the same call: what is called runs in a thread, as the loop must turn."""

    def __init__(self, caller: LocalCaller) -> None:
        self._caller = caller

    @property
    def objects(self) -> AsyncObjects:
        async def ask(make_message: MakeObjectAsk, fds: Sequence[int]) -> ObjectReply:
            return self._caller.ask(make_message, fds)

        return AsyncObjects(ask)

    async def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        for answer in await asyncio.to_thread(self._caller.answers, call):
            yield answer


def _as_known(error: Exception) -> CorosrvError:
    """Returns an error of a call as the handler that makes the call gets it."""
    kind = failure_kind(error)
    if kind != "failed" or not isinstance(error, CorosrvError):
        error = error_of_failure(kind, str(error))
    return Fault.from_error(error).error()
