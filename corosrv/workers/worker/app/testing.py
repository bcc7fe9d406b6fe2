"""Runs handlers in the process of a test, without server and wire, with what a server gives them: calls and objects.

Handlers are found as a server finds them; the object of a worker class is started when a call needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from corosrv.base.errors import Conflict, CorosrvError, DeadlinePassed, NotFound
from corosrv.contracts.jobs.infer import HandlerCard, InferOutputs, InferRequest
from corosrv.formats.tensors import check_inputs
from corosrv.workers.dispatch.answers import UnaryAnswer, check_answerable, choose
from corosrv.workers.dispatch.call import check_depth
from corosrv.workers.dispatch.capability import parse_preferences, parse_query, weigh
from corosrv.workers.dispatch.registry import default_card
from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire.calls import ObjectAnswer
from corosrv.workers.wire.faults import Fault, error_of_failure, failure_kind
from corosrv.workers.worker.app.answers import invoke, invoke_async, invoke_batch, invoke_batch_async
from corosrv.workers.worker.app.context import AsyncContext, Context, OutgoingCall
from corosrv.workers.worker.app.messages import EndSignal, ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, MakeObjectAsk, ObjectReply, Objects
from corosrv.workers.worker.app.pools import BaseWorker, BoundHandler, Pool
from corosrv.workers.worker.parent.asks import ObjectAsks


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


class LocalCaller:
    """Fulfils Caller for one call. `waiting`: the groups of the handlers that wait for it, its own one last."""

    def __init__(
        self,
        run: Callable[[OutgoingCall, LocalCaller], list[ModelInferResponse]],
        store: ObjectStore,
        signal: EndSignal,
        waiting: tuple[tuple[str, int], ...],
    ) -> None:
        """`run`: returns all answers to a call that a handler makes; waits, and raises what it ends in."""
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


Results = list[ModelInferResponse | BaseException]


class LocalRun:
    """Runs the handlers of one application. Coroutines run on a loop in a thread of its own, all others where called.

    Owns the worker classes' objects and the stored objects, which stay from call to call.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers = LocalHandlers(pools, self._complete)
        self._store = ObjectStore()
        weakref.finalize(self, self._store.close)

    def call(
        self,
        name: str,
        request: ModelInferRequest | Sequence[ModelInferRequest],
        version: str = "",
        timeout_ms: float | None = None,
        cancel_after_ms: float | None = None,
    ) -> Any:
        """Runs a handler; see App.test_call. Raises NotFound, and InvalidTensor for inputs that are not as declared."""
        handler = self._handlers.find(name, version)
        requests = [request] if isinstance(request, ModelInferRequest) else list(request)
        if handler.card.batch is None and len(requests) != 1:
            raise ValueError(f"{name} takes no batches: call it with one request")
        for one_request in requests:
            check_inputs(handler.card.inputs, one_request.inputs)
        limits = [limit for limit in (timeout_ms, handler.card.timeout_ms) if limit is not None]
        with _signal(min(limits, default=None), cancel_after_ms) as signal:
            results = self._run(handler, requests, signal, ())
        if handler.card.batch is not None:
            return results if not isinstance(request, ModelInferRequest) else _answers(results)[0]
        answers = _answers(results)
        return answers if handler.signature.kind.is_stream else answers[0]

    def _called(self, call: OutgoingCall, caller: LocalCaller) -> list[ModelInferResponse]:
        """Runs what a handler calls, to its end, and returns the answers that a server would give."""
        handler = self._handler_of(call)
        card = handler.card
        outputs = None if call.outputs is None else tuple(call.outputs)
        check_answerable(card, InferRequest(outputs=outputs), call.stream)
        check_inputs(card.inputs, call.inputs)
        _check_circle(card, handler, caller)
        request = ModelInferRequest(call.inputs, card.name, card.version, "", call.parameters or {}, outputs)
        limits = [limit for limit in (call.timeout_ms, card.timeout_ms) if limit is not None]
        with _signal(min(limits, default=None), None, caller.signal) as signal:
            answers = _answers(self._run(handler, [request], signal, caller.waiting))
        answers = answers if call.stream or not card.is_stream else [_joined(card, answers, outputs)]
        for answer in answers:
            answer.model_name, answer.model_version = card.name, card.version
            if call.capability is not None:
                answer.parameters["capability"] = msgspec.json.encode(card.capability).decode()
        return answers

    def _handler_of(self, call: OutgoingCall) -> BoundHandler:
        if call.capability is None:
            return self._handlers.find(call.model, call.version, is_model=True)
        return self._handlers.match(call.capability, call.prefer or {}, call.is_fuzzy)

    def _run(
        self,
        handler: BoundHandler,
        requests: Sequence[ModelInferRequest],
        signal: EndSignal,
        waiting: tuple[tuple[str, int], ...],
    ) -> Results:
        """Runs a handler; returns the answer or error of each request of a batch, or the answers of the only one."""
        caller = LocalCaller(self._called, self._store, signal, (*waiting, _group(handler)))
        try:
            signal.check()
            results = self._results(handler, requests, [_context(handler, one, caller) for one in requests], signal)
        except BaseException:
            signal.check()  # what the end of a call leads to is no error of its own
            raise
        finally:
            caller.close()
        signal.check()
        answered = requests if handler.card.batch else [requests[0]] * len(results)
        return [_choose_outputs(handler, request, result) for request, result in zip(answered, results, strict=True)]

    def _results(
        self, handler: BoundHandler, requests: Sequence[ModelInferRequest], contexts: Sequence[Any], signal: EndSignal
    ) -> Results:
        is_async = handler.signature.kind.is_async
        if handler.card.batch is not None:
            if is_async:
                return [*self._complete(invoke_batch_async(handler, requests, contexts), signal)]
            return [*invoke_batch(handler, requests, contexts)]
        answers: list[ModelInferResponse] = []

        def keep(answer: ModelInferResponse) -> None:
            signal.check()
            answers.append(answer)

        async def keep_async(answer: ModelInferResponse) -> None:
            keep(answer)

        if is_async:
            self._complete(invoke_async(handler, requests[0], contexts[0], keep_async), signal)
        else:
            invoke(handler, requests[0], contexts[0], keep)
        return [*answers]

    def _complete(self, coroutine: Coroutine[Any, Any, Any], signal: EndSignal | None = None) -> Any:
        """Runs a coroutine on the loop, where the signal cancels it. Waits. Any other thread."""
        loop = self._loop = self._loop or _start_loop(self)

        async def run() -> Any:
            task = asyncio.ensure_future(coroutine)
            if signal is not None:
                signal.on_set(functools.partial(loop.call_soon_threadsafe, task.cancel))
            return await task

        return asyncio.run_coroutine_threadsafe(run(), loop).result()


def _start_loop(owner: LocalRun) -> asyncio.AbstractEventLoop:
    """Starts a loop, which ends with its owner."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_forever()
        loop.close()

    threading.Thread(target=run, name="corosrv-test-loop", daemon=True).start()
    weakref.finalize(owner, loop.call_soon_threadsafe, loop.stop)
    return loop


@contextlib.contextmanager
def _signal(
    timeout_ms: float | None, cancel_after_ms: float | None, parent: EndSignal | None = None
) -> Iterator[EndSignal]:
    """Makes the signal of one call, which is set when its time is over, when it is cancelled, or with its parent's."""
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    if parent is not None and parent.deadline is not None:
        deadline = parent.deadline if deadline is None else min(deadline, parent.deadline)
    signal = EndSignal(deadline)
    timers = []
    if deadline is not None:
        timers.append(_timer(max(0.0, deadline - time.monotonic()), functools.partial(signal.set, is_deadline=True)))
    if cancel_after_ms == 0:
        signal.set()
    elif cancel_after_ms is not None:
        timers.append(_timer(cancel_after_ms / 1000, signal.set))
    if parent is not None:
        parent.on_set(lambda: signal.set(is_deadline=isinstance(parent.error(), DeadlinePassed)))
    try:
        yield signal
    finally:
        for timer in timers:
            timer.cancel()


def _timer(seconds: float, function: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def _context(handler: BoundHandler, request: ModelInferRequest, caller: LocalCaller) -> Context | AsyncContext:
    if handler.signature.kind.is_async:
        return AsyncContext(caller.signal, request_id=request.id, caller=LocalAsyncCaller(caller))
    return Context(caller.signal, request_id=request.id, caller=caller)


def _group(handler: BoundHandler) -> tuple[str, int]:
    """Returns what handlers have in common that share slots."""
    return getattr(handler.function, "__qualname__", ""), handler.card.group


def _check_circle(card: HandlerCard, handler: BoundHandler, caller: LocalCaller) -> None:
    """Raises Conflict for a call that would wait for itself on a server with one worker process for each pool."""
    check_depth([name for name, _ in caller.waiting])
    if caller.waiting.count(_group(handler)) >= card.concurrency:
        raise Conflict(f"the call of {card.name} would wait for a slot, and the calls that wait for it hold them all")


def _choose_outputs(
    handler: BoundHandler, request: ModelInferRequest, result: ModelInferResponse | BaseException
) -> ModelInferResponse | BaseException:
    """Returns an answer with the outputs that were asked for, or an error. Raises what `choose` raises."""
    if isinstance(result, BaseException):
        return result
    outputs = choose(handler.card, _outputs(result), request.requested_outputs, handler.signature.kind.is_stream)
    return ModelInferResponse(outputs.outputs, outputs.parameters, result.final)


def _joined(
    card: HandlerCard, answers: Sequence[ModelInferResponse], names: Sequence[str] | None
) -> ModelInferResponse:
    """Makes the one answer of a handler that streams. Raises HandlerFailed."""
    unary = UnaryAnswer(card)
    for answer in answers:
        if (error := unary.add(_outputs(answer))) is not None:
            raise error
    outputs = unary.result(names)
    return ModelInferResponse(outputs.outputs, outputs.parameters, True)


def _outputs(response: ModelInferResponse) -> InferOutputs:
    return InferOutputs(tuple(response.outputs), response.parameters, bool(response.final))


def _answers(results: Results) -> list[ModelInferResponse]:
    """Returns results that are answers. Raises the first that is an error."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ModelInferResponse)]
