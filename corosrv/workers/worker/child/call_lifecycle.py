"""Begins and ends the calls and batches of a worker process, on whatever thread they run.

`CallCancels` matches a cancel with the call that it is meant for: the slot may run another one by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from corosrv.base.errors import BadFrame, InvalidTensor, OutputFailed, ProtocolError
from corosrv.contracts.jobs.setup import LogLine
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import CallEnd, CallFailure, CallOutputs, CancelCall, RunCall
from corosrv.workers.wire.faults import failure_kind
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.app.context import AsyncContext, Context
from corosrv.workers.worker.app.messages import EndSignal, ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.pools import BoundHandler
from corosrv.workers.worker.capture import Capture
from corosrv.workers.worker.child.lane_asks import AppSlot
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.child.runtime import describe, message_of, trace_frames
from corosrv.workers.worker.printed import Printed, place


class _SlotCancels:
    def __init__(self) -> None:
        self.running: HandlerCall | None = None
        self.last_id: int | None = None  # of the call that ended last
        self.early: list[CancelCall] = []  # for a call that is not here yet


class CallCancels:
    """Knows the running call of each slot. Any thread.

    A cancel comes over another channel than its call, so it may be there first, or when all is over.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _SlotCancels] = {}
        self._lock = threading.Lock()

    @property
    def n_running(self) -> int:
        with self._lock:
            return sum(slot.running is not None for slot in self._slots.values())

    def begin(self, slot: int, call: HandlerCall) -> None:
        """Makes the call cancellable; a cancel that came before counts at once."""
        with self._lock:
            lane = self._slots.setdefault(slot, _SlotCancels())
            lane.running = call
            early, lane.early = lane.early, []
        for cancel in early:
            if cancel.id == call.id:
                call.cancel(cancel.item, is_deadline=cancel.is_deadline)

    def end(self, slot: int) -> None:
        with self._lock:
            lane = self._slots[slot]
            assert lane.running is not None, "a call ends that has not begun"
            lane.last_id, lane.running = lane.running.id, None

    def cancel(self, message: CancelCall) -> None:
        with self._lock:
            lane = self._slots.setdefault(message.slot, _SlotCancels())
            call = lane.running
            if call is None or call.id != message.id:
                if message.id != lane.last_id:  # else it has ended
                    lane.early = [cancel for cancel in lane.early if cancel.id == message.id] + [message]
                return
        call.cancel(message.item, is_deadline=message.is_deadline)


Result = ModelInferResponse | BaseException | None  # of one item; None: all its answers were sent


class HandlerCall:
    """Holds a call from its slot's lane. Belongs to the thread that runs it; any thread may cancel it."""

    def __init__(
        self,
        message: RunCall,
        inputs: Sequence[tuple[Tensor, ...]],
        slot: AppSlot,
        handler: BoundHandler,
        printed: Printed,
        worker_id: str,
    ) -> None:
        self.id = message.id
        self.slot = slot
        self._outbox = slot.lane.outbox
        self.handler = handler
        self.printed = printed
        self.interrupt: Callable[[], object] = lambda: None  # called once, when no item is wanted any more
        now = time.monotonic()
        self.signals = [
            EndSignal(None if budget_us is None else now + budget_us / 1e6) for budget_us in message.budget_us
        ]
        self.requests = [
            ModelInferRequest(
                tensors,
                handler.card.name,
                handler.card.version,
                request.id,
                request.parameters,
                request.outputs,
            )
            for request, tensors in zip(message.requests, inputs, strict=True)
        ]
        make_context: Any = AsyncContext if handler.signature.kind.is_async else Context
        self.contexts = [
            make_context(
                signal,
                request_id=request_id,
                worker_id=worker_id,
                attempt=message.attempt,
                caller=slot.make_caller(signal, request_id),
                trace_headers=message.trace_headers[number] if message.trace_headers else None,
            )
            for number, (signal, request_id) in enumerate(zip(self.signals, message.request_ids, strict=True))
        ]

    @property
    def is_batch(self) -> bool:
        return self.handler.card.batch is not None

    @property
    def is_over(self) -> bool:
        """True once no item is wanted any more."""
        return all(signal.is_set for signal in self.signals)

    def cancel(self, item: int, *, is_deadline: bool) -> None:
        """Tells an item, or all of them with -1, that it must end. Any thread; does not wait."""
        if self.is_over or item >= len(self.signals):
            return
        for signal in self.signals if item < 0 else [self.signals[item]]:
            signal.set(is_deadline=is_deadline)
        if self.is_over:
            self.interrupt()
            self.slot.asks.cancel()
            self._outbox.nudge()

    def post_answer(self, response: ModelInferResponse) -> None:
        """Sends one of several answers. Does not wait for the server. Raises OutputFailed if it cannot be sent."""
        try:
            self._post(response, 0)
        except Exception as error:  # whatever a parameter or a content is that no message can hold
            raise _unsendable(error) from error

    def end(self, results: Sequence[Result]) -> None:
        """Sends the rest of each item: an answer, if there is one that was not sent yet, and how it ended."""
        for item, result in enumerate(results):
            signal_error = self.signals[item].error() if self.signals[item].is_set else None
            error = signal_error or (result if isinstance(result, BaseException) else None)
            try:
                if error is not None:
                    self._fail(item, error)
                elif isinstance(result, ModelInferResponse):
                    self._post(result, item, CallEnd(self.id, item))
                else:
                    self._outbox.post(CallEnd(self.id, item))
            except Exception as unsendable:  # an item must have an end
                self._fail(item, _unsendable(unsendable))

    def _post(self, response: ModelInferResponse, item: int, *following: CallEnd) -> None:
        with TensorPacking() as packing:
            tensors = packing.pack(response.outputs)
            message = CallOutputs(self.id, tensors, response.parameters, bool(response.final), item)
            fds = packing.fds()
            if fds:
                self._outbox.post(message, fds=fds)
                for end in following:
                    self._outbox.post(end)
            else:
                self._outbox.post(message, *following)

    def _fail(self, item: int, error: BaseException) -> None:
        kind = failure_kind(error)
        if kind != "failed":
            text = message_of(error) or kind.replace("_", " ")
        else:
            text = describe(error) if isinstance(error, OutputFailed) else trace_frames(error)
        self._outbox.post(CallFailure(self.id, kind, text, item))


def _unsendable(error: Exception) -> OutputFailed:
    return OutputFailed(f"an answer cannot be sent: {describe(error)}")


class CallLifecycle:
    """Begins and ends the calls of all slots, in the threads that run them."""

    def __init__(
        self, handlers: Sequence[BoundHandler], capture: Capture, server_log: Printed, fork: Fork, worker_id: str
    ) -> None:
        self._handlers = handlers
        self._capture = capture
        self._server_log = server_log
        self._worker_id = worker_id
        self.fork = fork
        self.cancels = CallCancels()

    def begin(self, message: RunCall, fds: Sequence[int], slot: AppSlot) -> HandlerCall:
        """Begins a call that was received with these descriptors. Raises BadFrame for one that no server sends."""
        if not 0 <= message.handler < len(self._handlers):
            raise BadFrame(f"a call of handler {message.handler}, where {len(self._handlers)} are registered")
        handler = self._handlers[message.handler]
        n_items = len(message.requests)
        n_allowed = handler.card.batch.max_size if handler.card.batch else 1
        n_of_each = {len(message.budget_us), len(message.request_ids), len(message.trace_headers) or n_items}
        if not 1 <= n_items <= n_allowed or n_of_each != {n_items}:
            raise BadFrame(f"a call of {handler.card.name} with {n_items} requests")
        try:
            inputs = unpack([request.inputs for request in message.requests], fds, are_checked=True)
        except (ProtocolError, InvalidTensor) as error:
            raise BadFrame(str(error)) from error
        printed = Printed(
            lambda source, text: slot.lane.outbox.post_log(LogLine(source, text)), successor=self._server_log
        )
        call = HandlerCall(message, inputs, slot, handler, printed, self._worker_id)
        slot.asks.begin()
        self._capture.begin(printed)
        self.cancels.begin(slot.id, call)
        return call

    def enter(self, call: HandlerCall) -> None:
        """Attributes what the current context prints to the call."""
        place.set(call.printed)

    def end(self, call: HandlerCall, results: Sequence[Result]) -> None:
        """Sends the rest of the printed text, then the ends: by then the slot is free."""
        self._capture.end(call.printed)
        self.cancels.end(call.slot.id)
        call.slot.asks.end()
        call.printed.close()
        call.end(results)
