"""Runs handlers that are no coroutines: a native thread for each slot, started by its first call."""

from __future__ import annotations

import functools
import logging
import threading
from contextvars import copy_context

from corosrv.base.errors import BadFrame
from corosrv.workers.worker.app.answers import invoke, invoke_batch
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.child.apps.call_lifecycle import CallLifecycle, HandlerCall, Result
from corosrv.workers.worker.child.apps.callers import LaneMail, ThreadCaller, ThreadExchange
from corosrv.workers.worker.child.apps.lane_asks import AppLane, AppSlot, LaneAsks
from corosrv.workers.worker.child.run import Poison

log = logging.getLogger("corosrv.worker")


class ThreadRunner:
    """Serves lanes; belongs to the threads that it starts."""

    def __init__(self, desk: CallLifecycle, poison: Poison) -> None:
        self._desk = desk
        self._poison = poison

    def start(self, lane: AppLane) -> None:
        """Starts the thread of a lane, which runs its calls until the lane ends."""
        threading.Thread(target=self._serve, args=(lane,), name=f"corosrv-slot-{lane.id}", daemon=True).start()

    def _serve(self, lane: AppLane) -> None:
        try:
            asks = LaneAsks(lane)
            mail = LaneMail(lane, asks)
            slot = AppSlot(lane, asks, functools.partial(ThreadCaller, ThreadExchange(asks, mail)))
            while (arrival := mail.next_call()) is not None:
                self._run(self._desk.begin(*arrival, slot))
        except BaseException as error:  # ours, or what a handler has done to the process
            if not isinstance(error, BadFrame):
                log.exception("slot %d ends", lane.id)
            self._poison(lane.id, str(error) or type(error).__name__)
            lane.close()

    def _run(self, call: HandlerCall) -> None:
        results = copy_context().run(self._results, call)
        self._desk.end(call, results)

    def _results(self, call: HandlerCall) -> list[Result]:
        """Runs the handler; returns what it gave back for each item, or the error that ended it."""
        self._desk.enter(call)
        try:
            results = self._invoke(call)
        except BaseException as error:  # also sys.exit() of user code, which ends a call and no more
            self._desk.fork.leave(error)
            return [error] * len(call.requests)
        self._desk.fork.leave()
        return results

    def _invoke(self, call: HandlerCall) -> list[Result]:
        handler = call.handler
        if call.is_batch:
            return [*invoke_batch(handler, call.requests, call.contexts)]
        call.signals[0].check()
        if handler.signature.kind.is_stream:
            invoke(handler, call.requests[0], call.contexts[0], lambda answer: self._send(call, answer))
            return [None]
        answers: list[ModelInferResponse] = []
        invoke(handler, call.requests[0], call.contexts[0], answers.append)
        return [*answers]

    def _send(self, call: HandlerCall, answer: ModelInferResponse) -> None:
        """Sends an answer before the next is made. Waits while the server does not read."""
        self._desk.fork.leave()
        call.signals[0].check()
        call.post_answer(answer)
        call.slot.lane.outbox.flush(unless=lambda: call.is_over)
