"""Runs handlers in the process of a test, without server and wire."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from corosrv.dispatch.versions import default_card
from corosrv.errors import NotFound, NotOffered
from corosrv.worker.app.asking import OutgoingCall
from corosrv.worker.app.base_worker import BaseWorker
from corosrv.worker.app.context import AsyncContext, Context
from corosrv.worker.app.invoke import invoke, invoke_async, invoke_batch, invoke_batch_async
from corosrv.worker.app.messages import ModelInferRequest, ModelInferResponse
from corosrv.worker.app.objects import AsyncObjects, Objects
from corosrv.worker.app.pools import BoundHandler, Pool
from corosrv.worker.app.signal import EndSignal


class LocalRun:
    """Owns the objects of the worker classes that were called. Belongs to one thread."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._workers: dict[str, BaseWorker] = {}
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)

    def call(self, name: str, request: ModelInferRequest | Sequence[ModelInferRequest], version: str = "") -> Any:
        """Runs a handler; see App.test_call. Raises NotFound."""
        handler = self._find(name, version)
        requests = [request] if isinstance(request, ModelInferRequest) else list(request)
        if handler.card.batch is None and len(requests) != 1:
            raise ValueError(f"{name} takes no batches: call it with one request")
        contexts = [self._context(handler, one_request.id) for one_request in requests]
        if handler.card.batch is not None:
            answers = self._call_batch(handler, requests, contexts)
            return answers if not isinstance(request, ModelInferRequest) else _answer_or_raise(answers[0])
        streamed = self._call_one(handler, requests[0], contexts[0])
        return streamed if handler.signature.kind.is_stream else streamed[0]

    def _context(self, handler: BoundHandler, request_id: str) -> Context | AsyncContext:
        if handler.signature.kind.is_async:
            return AsyncContext(EndSignal(), request_id=request_id, caller=_LocalAsyncCaller(self))
        return Context(EndSignal(), request_id=request_id, caller=_LocalCaller(self))

    def answers(self, call: OutgoingCall) -> list[ModelInferResponse]:
        """Runs what a handler calls, to its end."""
        handler, request = self._callee(call)
        return self._call_one(handler, request, self._context(handler, ""))

    async def answers_async(self, call: OutgoingCall) -> list[ModelInferResponse]:
        """Runs what a coroutine calls, to its end."""
        handler, request = self._callee(call)
        if not handler.signature.kind.is_async:
            return self.answers(call)
        answers: list[ModelInferResponse] = []

        async def keep(answer: ModelInferResponse) -> None:
            answers.append(answer)

        await invoke_async(handler, request, self._context(handler, ""), keep)
        return answers

    def _callee(self, call: OutgoingCall) -> tuple[BoundHandler, ModelInferRequest]:
        """Finds what a handler calls: a capability must have all attributes of the query. Raises NotFound."""
        name, version = call.model, call.version
        if call.capability is not None:
            query = call.capability.items()
            cards = [card for pool in self._pools for card in pool.cards() if card.capability is not None]
            matching = [card for card in cards if card.capability is not None and query <= card.capability.items()]
            if not matching:
                raise NotFound(f"no capability of the application has {dict(query)}")
            name, version = matching[0].name, matching[0].version
        handler = self._find(name, version)
        if handler.card.batch is not None:
            raise NotOffered(f"in tests, nothing calls {name}, which takes batches")
        parameters, outputs = call.parameters or {}, call.outputs
        return handler, ModelInferRequest(call.inputs, name, version, "", parameters, outputs)

    def _call_one(self, handler: BoundHandler, request: ModelInferRequest, context: Any) -> list[ModelInferResponse]:
        answers: list[ModelInferResponse] = []

        async def keep(answer: ModelInferResponse) -> None:
            answers.append(answer)

        if handler.signature.kind.is_async:
            self._loop.run_until_complete(invoke_async(handler, request, context, keep))
        else:
            invoke(handler, request, context, answers.append)
        return answers

    def _call_batch(self, handler: BoundHandler, requests: Sequence[ModelInferRequest], contexts: Sequence[Any]) -> Any:
        if handler.signature.kind.is_async:
            return self._loop.run_until_complete(invoke_batch_async(handler, requests, contexts))
        return invoke_batch(handler, requests, contexts)

    def _find(self, name: str, version: str) -> BoundHandler:
        """Finds a handler; without a version, the one that a server would choose. Raises NotFound."""
        pools = {card.key: (pool, card) for pool in self._pools for card in pool.cards() if card.name == name}
        card = default_card(card for _, card in pools.values() if version in ("", card.version))
        if card is None:
            raise NotFound(f"the application has no handler {name!r}" + (f" version {version!r}" if version else ""))
        pool, _ = pools[card.key]
        return next(handler for handler in pool.bind(self._worker_of(pool)) if handler.card == card)

    def _worker_of(self, pool: Pool) -> BaseWorker | None:
        """Returns the started object of a worker class, or None for plain functions."""
        if pool.worker_class is None:
            return None
        if pool.name not in self._workers:
            worker = pool.worker_class()
            result = worker.on_start()
            if inspect.iscoroutine(result):
                self._loop.run_until_complete(result)
            self._workers[pool.name] = worker
        return self._workers[pool.name]


class _LocalCaller:
    """Fulfils Caller with the other handlers of the application; there are no objects."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    @property
    def objects(self) -> Objects:
        raise NotOffered("App.test_call has no objects")

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        return iter(self._run.answers(call))


class _LocalAsyncCaller:
    """Fulfils AsyncCaller in the same way."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    @property
    def objects(self) -> AsyncObjects:
        raise NotOffered("App.test_call has no objects")

    async def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        for answer in await self._run.answers_async(call):
            yield answer


def _answer_or_raise(answer: ModelInferResponse | BaseException) -> ModelInferResponse:
    if isinstance(answer, BaseException):
        raise answer
    return answer
