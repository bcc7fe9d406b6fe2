"""Runs one call, or one batch of calls, in the worker process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from corosrv.base.errors import OutputFailed
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import CallEnd, CallFailure, CallOutputs, RunCall
from corosrv.workers.wire.tensors import TensorPacking
from corosrv.workers.worker.app.context import AsyncContext, Context
from corosrv.workers.worker.app.errors import failure_kind
from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.pools import BoundHandler
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.child.apps.app_slot import AppSlot
from corosrv.workers.worker.child.tracebacks import describe, message_of, trace_frames
from corosrv.workers.worker.printing.printed import Printed

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
            )
            for signal, request_id in zip(self.signals, message.request_ids, strict=True)
        ]

    @property
    def is_batch(self) -> bool:
        return self.handler.card.batch is not None

    @property
    def is_over(self) -> bool:
        """True once no item is wanted any more."""
        return all(signal.is_set for signal in self.signals)

    def cancel(self, item: int, *, is_deadline: bool) -> None:
        """Tells an item, or all of them with -1, that it must end."""
        if self.is_over or item >= len(self.signals):
            return
        for signal in self.signals if item < 0 else [self.signals[item]]:
            signal.set(is_deadline=is_deadline)
        if self.is_over:
            self.interrupt()
            self.slot.asks.cancel()
            self._outbox.nudge()

    def post_answer(self, response: ModelInferResponse, item: int = 0) -> None:
        """Sends one of several answers. Does not wait for the server. Raises OutputFailed if it cannot be sent."""
        try:
            self._post(response, item)
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
