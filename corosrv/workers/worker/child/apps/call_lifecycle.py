"""Begins and ends calls, on whatever thread they run."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.base.errors import BadFrame, InvalidTensor, ProtocolError
from corosrv.contracts.jobs.answers import LogLine
from corosrv.workers.wire.calls import RunCall
from corosrv.workers.wire.tensors import unpack
from corosrv.workers.worker.app.pools import BoundHandler
from corosrv.workers.worker.child.apps.app_slot import AppSlot
from corosrv.workers.worker.child.apps.call_cancels import CallCancels
from corosrv.workers.worker.child.apps.handler_call import HandlerCall, Result
from corosrv.workers.worker.child.forked import Fork
from corosrv.workers.worker.printing.capture import Capture
from corosrv.workers.worker.printing.printed import Printed, place


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
        if not 1 <= n_items <= n_allowed or {len(message.budget_us), len(message.request_ids)} != {n_items}:
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
        """Makes what the current context prints a part of the call."""
        place.set(call.printed)

    def end(self, call: HandlerCall, results: Sequence[Result]) -> None:
        """Sends the rest of the printed text, then the ends: by then the slot is free."""
        self._capture.end(call.printed)
        self.cancels.end(call.slot.id)
        call.slot.asks.end()
        call.printed.close()
        call.end(results)
