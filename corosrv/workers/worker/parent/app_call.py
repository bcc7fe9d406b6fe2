"""Follows a call of a handler, or a batch, on a slot of a worker: from its message to its ends.

A failure that the worker reports becomes an error for clients, without the words of an exception that is no answer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from corosrv.base.errors import (
    CallCancelled,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    InvalidTensor,
    ProtocolError,
    WorkerLost,
)
from corosrv.contracts.jobs.infer import InferOutputs
from corosrv.contracts.jobs.setup import LogLine
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from corosrv.workers.wire.calls import CallEnd, CallFailure, CallOutputs, LaneFromAppWorker, RunCall, WireRequest
from corosrv.workers.wire.faults import HANDLER_FAILED, error_of_failure
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.parent.asks import CallAsks, Lane
from corosrv.workers.worker.parent.call_services import CallServices

log = logging.getLogger("corosrv.worker")

MAX_TRACEBACK = 16 << 10  # characters of it in the log


class CallOwner(Protocol):
    """Stands for the worker process of a call, as the call knows it. Nothing here waits."""

    def send_cancel(self, call: AppCall, item: int, is_deadline: bool) -> None: ...

    def write_output(self, source: str, text: str, request_id: str) -> None:
        """Writes what a call printed into the log."""

    def count_end(self, error: CorosrvError | None) -> None: ...

    @property
    def services(self) -> CallServices: ...


@dataclass(slots=True)
class _Item:
    """Holds one call of a batch, or the only one."""

    deadline: float | None  # of time.monotonic()
    cancelled_at: float | None = None
    error: CorosrvError | None = None  # known before the handler has ended
    has_ended: bool = False

    @property
    def should_end_at(self) -> float | None:
        times = [moment for moment in (self.deadline, self.cancelled_at) if moment is not None]
        return min(times, default=None)


class AppCall:
    """Fulfils SlotCall for its slot and RunningCall for the dispatcher. Each item ends once, whatever happens."""

    def __init__(
        self, call_id: int, call: HandedCall, permit: Permit, listener: CallListener, lane: Lane, owner: CallOwner
    ) -> None:
        self.id = call_id
        self.permit = permit
        self._call = call
        self._listener = listener
        self._lane = lane
        self._owner = owner
        self._items = [_Item(item.deadline) for item in call.items]
        self._n_running = len(self._items)
        self._asks: CallAsks | None = None

    def __repr__(self) -> str:
        return f"AppCall({self.id}, handler {self._call.handler}, {self._n_running} of {len(self._items)} running)"

    @property
    def handler(self) -> int:
        return self._call.handler

    @property
    def request_ids(self) -> list[str]:
        return [item.request_id for item in self._call.items]

    def message(self, packing: TensorPacking, now: float) -> RunCall:
        """Returns what starts the call; `packing` gets its tensors."""
        requests = [
            WireRequest(
                packing.pack(item.request.inputs),
                item.request.id,
                dict(item.request.parameters),
                None if item.request.outputs is None else list(item.request.outputs),
            )
            for item in self._call.items
        ]
        return RunCall(
            self.id,
            self.handler,
            requests,
            self.budgets_us(now),
            self.request_ids,
            self._call.attempt,
            self._call.stream,
            self._trace_headers(),
        )

    def _trace_headers(self) -> list[dict[str, str]]:
        """Returns the headers by which handlers go on with the trace of each item; none where there are no traces."""
        found = [{} if item.trace is None else dict(item.trace.headers()) for item in self._call.items]
        return found if any(found) else []

    def budgets_us(self, now: float) -> list[int | None]:
        """Returns the microseconds that each item has left."""
        return [None if item.deadline is None else max(0, int((item.deadline - now) * 1e6)) for item in self._items]

    # What the dispatcher does with it.

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        numbers = range(len(self._items)) if item < 0 else (item,)
        news = [number for number in numbers if self._mark_cancelled(self._items[number])]
        if len(news) == len(self._items):
            self._owner.send_cancel(self, -1, is_deadline)
            return
        for number in news:
            self._owner.send_cancel(self, number, is_deadline)

    def cancel_overdue(self, now: float) -> None:
        """Cancels items past their deadline: the dispatcher may have forgotten them."""
        for number, item in enumerate(self._items):
            if item.deadline is not None and item.deadline <= now:
                self.cancel(number, is_deadline=True)

    def _mark_cancelled(self, item: _Item) -> bool:
        """Returns whether it is the item's first cancel."""
        if item.has_ended or item.cancelled_at is not None:
            return False
        item.cancelled_at = time.monotonic()
        return True

    # Its times.

    @property
    def has_ended(self) -> bool:
        return self._n_running == 0

    @property
    def deadline(self) -> float | None:
        """The time when all of it is overdue; None if some of it never is."""
        latest = 0.0
        for item in self._items:
            if item.deadline is None:
                return None
            latest = max(latest, item.deadline)
        return latest

    @property
    def is_cancelled(self) -> bool:
        """True once every item has ended or was cancelled."""
        return all(item.has_ended or item.cancelled_at is not None for item in self._items)

    @property
    def should_end_at(self) -> float | None:
        """The time when all that runs of it was cancelled or overdue; None if some may go on, or all has ended."""
        if self.has_ended:
            return None
        latest = 0.0
        for item in self._items:
            if item.has_ended:
                continue
            if (moment := item.should_end_at) is None:
                return None
            latest = max(latest, moment)
        return latest

    # What the worker says.

    def is_last(self, message: LaneFromAppWorker) -> bool:
        if isinstance(message, (CallOutputs, CallEnd, CallFailure)):
            self._check(message)
        if isinstance(message, CallFailure):
            error_of_failure(message.kind, "")  # raises for an unknown kind
        return isinstance(message, (CallEnd, CallFailure)) and self._n_running == 1

    def _check(self, message: CallOutputs | CallEnd | CallFailure) -> None:
        name = type(message).__name__
        if message.id != self.id:
            raise ProtocolError(f"{name} came for another call than the one that runs")
        if not 0 <= message.item < len(self._items):
            raise ProtocolError(f"{name} came for item {message.item} of a call of {len(self._items)}")
        if self._items[message.item].has_ended:
            raise ProtocolError(f"{name} came for an item that has ended")

    def add(self, message: LaneFromAppWorker, n_bytes: int) -> None:
        match message:
            case CallOutputs():
                self._on_outputs(message, n_bytes)
            case CallEnd():
                self._end(message.item, None)
            case CallFailure():
                self._on_failure(message)
            case LogLine():
                self._owner.write_output(message.source, message.data, self.request_ids[0])
            case _:
                if self._asks is None:
                    self._asks = CallAsks(self._owner.services, self._lane, self._terms_of_asks())
                self._asks.on_message(message, self._lane.take_fds())

    def _on_outputs(self, message: CallOutputs, n_bytes: int) -> None:
        item = self._items[message.item]
        try:
            (tensors,) = unpack([message.outputs], self._lane.take_fds())
        except InvalidTensor as error:
            log.error("request %s: the handler gave no tensor: %s", self._call.items[message.item].request_id, error)
            if item.error is None:
                item.error = HandlerFailed(HANDLER_FAILED)
                self.cancel(message.item)
            return
        if item.error is None:
            n_attached = sum(max(0, wire.n_attached) for wire in message.outputs)
            outputs = InferOutputs(tensors, message.parameters, message.is_final)
            self._listener.on_outputs(message.item, outputs, n_bytes + n_attached)

    def _on_failure(self, message: CallFailure) -> None:
        if message.kind == "failed":
            request_id = self._call.items[message.item].request_id
            log.error("request %s: the handler failed: %s", request_id, message.message[-MAX_TRACEBACK:])
        self._end(message.item, error_of_failure(message.kind, message.message))

    def _terms_of_asks(self) -> Terms:
        """Returns the terms of the calls that this one makes, which all of its items wait for.

        What a batch of several callers asks for is nobody's: none of them may get at what is another's. What one of
        several owners asks for takes a share of its own, for the tier is one of all that an owner runs.
        """
        items, first = self._call.items, self._call.items[0]
        tier = min(item.tier for item in items)
        is_of_one = all((item.caller, item.owner) == (first.caller, first.owner) for item in items)
        return Terms(
            caller=first.caller if all(item.caller == first.caller for item in items) else "",
            owner=first.owner if is_of_one else f"several\0{tier}",
            tier=tier,
            weight=first.weight if is_of_one else 1.0,
            request_id=first.request_id,
            n_hops=max(item.n_hops for item in items),
            visited=tuple(dict.fromkeys(chain.from_iterable(item.visited for item in items))),
            headers=first.headers if is_of_one else (),
            priority=min(item.priority for item in items),
            deadline=self.deadline,
            waiting_keys=self._call.waiting_keys,
            asker=self._call.number,
            trace=first.trace if len(items) == 1 else None,
        )

    def wait_for_room(self) -> None:
        self._listener.wait_for_room()

    # Its ends.

    def fail(self, reason: str) -> None:
        now = time.monotonic()
        for number, item in enumerate(self._items):
            if not item.has_ended:
                self._end(number, _error_of_loss(item, now))

    def refuse(self, error: CorosrvError) -> None:
        """Ends all of it with an error: the worker has never got it."""
        for number in range(len(self._items)):
            self._end(number, error)

    def _end(self, number: int, error: CorosrvError | None) -> None:
        item = self._items[number]
        item.has_ended = True
        self._n_running -= 1
        if self._n_running == 0 and self._asks is not None:
            self._asks.close()
        error = item.error or error
        self._owner.count_end(error)
        try:
            self._listener.on_end(number, error)
        except Exception:  # the other items have to end, and the slot is not to blame
            log.exception("the end of a call could not be passed on")


def _error_of_loss(item: _Item, now: float) -> CorosrvError:
    if item.error is not None:
        return item.error
    if item.deadline is not None and item.deadline <= now:
        return DeadlinePassed("the call's time is over")
    if item.cancelled_at is not None:
        return CallCancelled("the call was cancelled")
    return WorkerLost("the worker process was lost while it ran this call")
