"""Runs handlers that are coroutines: the calls of all their slots on one event loop, in a thread of its own.

`LoopCaller` makes the calls of those handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from corosrv.base.errors import BadFrame, CallCancelled
from corosrv.workers.wire.calls import ObjectAnswer, RunCall
from corosrv.workers.worker.app.answers import invoke_async, invoke_batch_async
from corosrv.workers.worker.app.context import OutgoingCall
from corosrv.workers.worker.app.messages import EndSignal, ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, ObjectReply
from corosrv.workers.worker.child.call_lifecycle import CallLifecycle, HandlerCall, Result
from corosrv.workers.worker.child.lane_asks import (
    OVER,
    AppLane,
    AppSlot,
    AskAnswer,
    LaneAsks,
    MakeMessage,
    OpenAsk,
    open_call,
    response_of,
)
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.child.run import Poison

log = logging.getLogger("corosrv.worker")


class LoopCaller:
    """Fulfils AsyncCaller for one request. Belongs to the loop's thread."""

    def __init__(self, asks: LaneAsks, signal: EndSignal, request_id: str) -> None:
        self._asks = asks
        self._signal = signal
        self._request_id = request_id

    @property
    def objects(self) -> AsyncObjects:
        return AsyncObjects(self._ask)

    def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        ask = open_call(self._asks.open, call, self._signal, self._request_id)
        return self._answers(ask)

    async def _answers(self, ask: OpenAsk) -> AsyncIterator[ModelInferResponse]:
        try:
            while (response := response_of(await self._next_answer(ask), self._signal)) is not None:
                yield response
        finally:
            self._asks.close(ask)

    async def _next_answer(self, ask: OpenAsk) -> AskAnswer:
        """Waits for the next answer. Raises CallCancelled once the handler's own call is over."""
        while not ask.answers:
            if ask.is_over:
                raise CallCancelled(OVER)
            has_news = asyncio.Event()
            ask.wake = has_news.set
            await has_news.wait()
        return self._asks.take(ask)

    async def _ask(self, make_message: MakeMessage, fds: Sequence[int]) -> ObjectReply:
        """Asks for an object, and waits for the answer. Raises what LaneAsks.open and _next_answer() raise."""
        ask = self._asks.open(make_message, fds)
        try:
            message, _, answer_fds = await self._next_answer(ask)
        finally:
            self._asks.close(ask)
        assert isinstance(message, ObjectAnswer), "nothing else answers it"
        return message, answer_fds


class LoopThread:
    """Owns an event loop and the thread that runs it, for as long as the process lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="corosrv-loop", daemon=True).start()

    def complete(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs a coroutine on the loop. Waits for it, and raises what it raises. Any other thread."""
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def let_go(self, fork: Fork) -> None:
        """Ends a forked copy that comes back to the loop: it would run everybody's tasks, with the worker's epoll."""
        self.loop.call_soon(fork.leave)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:  # out of some task that a handler started
                log.warning("a task that a handler started raised %r; calls go on", error)


class LoopRunner:
    """Serves lanes; belongs to the loop's thread."""

    def __init__(self, thread: LoopThread, desk: CallLifecycle, poison: Poison) -> None:
        self._loop = thread.loop
        self._desk = desk
        self._poison = poison
        self._tasks: dict[int, asyncio.Task[list[Result]]] = {}

    def start(self, lane: AppLane) -> None:
        """Begins to serve a lane. Any thread."""
        asks = LaneAsks(lane)
        slot = AppSlot(lane, asks, functools.partial(LoopCaller, asks))
        self._loop.call_soon_threadsafe(self._loop.add_reader, lane.fileno(), self._receive, slot)

    def _receive(self, slot: AppSlot) -> None:
        lane = slot.lane
        try:
            with contextlib.suppress(BlockingIOError):
                while (message := lane.receive_nowait()) is not None:
                    if isinstance(message, RunCall):
                        self._begin(message, slot)
                    else:
                        slot.asks.deliver(message, lane.take_fds())
                self._loop.remove_reader(lane.fileno())
        except BaseException as error:  # ours, or what a handler has done to the process
            if not isinstance(error, BadFrame):
                log.exception("slot %d ends", lane.id)
            self._loop.remove_reader(lane.fileno())
            self._poison(lane.id, str(error) or type(error).__name__)
            lane.close()

    def _begin(self, message: RunCall, slot: AppSlot) -> None:
        if slot.id in self._tasks:
            raise BadFrame("a call came before the one before it had ended")
        call = self._desk.begin(message, slot.lane.take_fds(), slot)
        self._tasks[slot.id] = task = self._loop.create_task(self._results(call))
        call.interrupt = lambda: self._loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda task: self._end(call, task))

    def _end(self, call: HandlerCall, task: asyncio.Task[list[Result]]) -> None:
        del self._tasks[call.slot.id]
        # User code that cancels all tasks there are may hit this one before it begins.
        self._desk.end(call, [asyncio.CancelledError()] * len(call.requests) if task.cancelled() else task.result())

    async def _results(self, call: HandlerCall) -> list[Result]:
        """Runs the handler; returns what it gave back for each item, or the error that ended it."""
        self._desk.enter(call)
        try:
            results = await self._invoke(call)
        except BaseException as error:  # also sys.exit() of user code, which ends a call and no more
            self._desk.fork.leave(error)
            return [error] * len(call.requests)
        self._desk.fork.leave()
        return results

    async def _invoke(self, call: HandlerCall) -> list[Result]:
        handler = call.handler
        if call.is_batch:
            return [*await invoke_batch_async(handler, call.requests, call.contexts)]
        call.signals[0].check()
        answers: list[ModelInferResponse] = []

        async def keep(answer: ModelInferResponse) -> None:
            answers.append(answer)

        async def send(answer: ModelInferResponse) -> None:
            await self._send(call, answer)

        is_stream = handler.signature.kind.is_stream
        await invoke_async(handler, call.requests[0], call.contexts[0], send if is_stream else keep)
        return [None] if is_stream else [*answers]

    async def _send(self, call: HandlerCall, answer: ModelInferResponse) -> None:
        """Sends an answer before the next is made. Waits while the server does not read."""
        call.signals[0].check()
        call.post_answer(answer)
        outbox = call.slot.lane.outbox
        has_news = asyncio.Event()
        while not outbox.is_empty and not call.is_over:
            has_news.clear()
            outbox.on_empty(lambda: self._loop.call_soon_threadsafe(has_news.set))
            await has_news.wait()
