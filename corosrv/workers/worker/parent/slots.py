"""Follows the slots of a worker on the server's side: the call that runs on each, and its end.

`Slots` finds them by id and by lane. `Handover` starts calls on them; what keeps a call from its slot is the call's own
failure.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import gevent
import msgspec

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    ChannelClosed,
    CorosrvError,
    FrameTooLarge,
    NotHandedOver,
    ProtocolError,
)
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit, PermitPool
from corosrv.workers.wire.calls import LaneFromAppWorker, LaneToAppWorker
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.tensors import TensorPacking
from corosrv.workers.worker.parent.app_call import AppCall, CallOwner
from corosrv.workers.worker.parent.call_services import LONG_COPY

log = logging.getLogger("corosrv.worker")

LaneOut = TypeVar("LaneOut")
LaneIn = TypeVar("LaneIn")
LaneIn_contra = TypeVar("LaneIn_contra", contravariant=True)


class SlotCall(Protocol[LaneIn_contra]):
    """Runs on a slot: a prediction, or a call of handlers. Only `wait_for_room` may wait."""

    @property
    def permit(self) -> Permit: ...

    def is_last(self, message: LaneIn_contra) -> bool:
        """Returns whether the call ends with this message. Raises ProtocolError for one that it cannot have sent."""

    def add(self, message: LaneIn_contra, n_bytes: int) -> None:
        """Takes a message; with the last one, the permit has ended before. Raises ProtocolError for an invalid one."""

    def wait_for_room(self) -> None:
        """Waits until more messages may come."""

    def fail(self, reason: str) -> None:
        """Ends what has not ended: the call will send nothing more. The permit has ended before."""


Call = TypeVar("Call", bound="SlotCall[Any]")


class Slot(Generic[LaneOut, LaneIn, Call]):
    """Runs one call after the other. Each of them ends once, after its permit has ended."""

    def __init__(self, slot_id: int, channel: GeventChannel[LaneOut, LaneIn], permits: PermitPool) -> None:
        """Takes the pool that has this slot's permits."""
        self.id = slot_id
        self.channel = channel
        self.permits = permits
        self.call: Call | None = None

    def begin(self, call: Call) -> None:
        assert self.call is None, f"slot {self.id} runs {self.call}"
        self.call = call

    def send(self, message: LaneOut, fds: Sequence[int] = ()) -> None:
        """Sends a message to the call. Raises FrameTooLarge, and what the codec raises."""
        with contextlib.suppress(ChannelClosed):  # whoever reads the channel hears of it, and ends what runs
            self.channel.send(message, fds)

    def on_message(self, message: LaneIn, n_bytes: int) -> None:
        """Handles a message. Raises ProtocolError for one that no call of this slot can have sent."""
        call = self.call
        if call is None:
            raise ProtocolError(f"{type(message).__name__} came while nothing ran")
        if call.is_last(message):
            self.call = None
            call.permit.release()
        call.add(message, n_bytes)

    def wait_for_room(self) -> None:
        """Waits until the running call takes more messages."""
        if self.call is not None:
            self.call.wait_for_room()

    def fail(self, reason: str, poison: str | None = None) -> None:
        """Ends the running call, if any; poisons the slot if `poison` has a reason."""
        call, self.call = self.call, None
        if call is None:
            return
        if poison is None:
            call.permit.release()
        else:
            call.permit.poison(poison)
        call.fail(reason)

    def poison(self, reason: str) -> None:
        """Takes the slot out of use for ever; what runs there fails with the reason."""
        self.fail(reason, poison=reason)
        if self.id in self.permits:
            self.permits.poison(self.id, reason)


class Slots(Generic[LaneOut, LaneIn, Call]):
    """Passes the messages of each lane to its slot; lanes and slots have the same order."""

    def __init__(self, slots: Sequence[Slot[LaneOut, LaneIn, Call]]) -> None:
        self._slots = slots
        self._by_id = {slot.id: slot for slot in slots}

    def __contains__(self, slot_id: int) -> bool:
        return slot_id in self._by_id

    def __getitem__(self, slot_id: int) -> Slot[LaneOut, LaneIn, Call]:
        return self._by_id[slot_id]

    def of_lane(self, lane: int) -> Slot[LaneOut, LaneIn, Call]:
        """Returns the slot whose channel has this number."""
        return self._slots[lane]

    @property
    def calls(self) -> Iterator[Call]:
        """Yields the calls that run now."""
        for slot in self._slots:
            if slot.call is not None:
                yield slot.call

    @property
    def n_running(self) -> int:
        return sum(slot.call is not None for slot in self._slots)

    @property
    def is_any_usable(self) -> bool:
        """True while a slot is neither poisoned nor retired."""
        return any(slot.permits.poisoned < slot.permits.total for slot in self._slots)

    def poison(self, slot_id: int, reason: str) -> None:
        """Takes a slot out of use for ever and closes its lane; what runs there fails with the reason."""
        slot = self._by_id[slot_id]
        slot.poison(reason)
        slot.channel.close()

    def retire_all(self) -> None:
        """Takes all slots out of their pools: idle ones at once, the others when their calls have ended."""
        for slot in self._slots:
            if slot.id in slot.permits:
                slot.permits.retire(slot.id)

    def poison_all(self, reason: str) -> None:
        """Fails all running calls: the worker has ended."""
        for slot in self._slots:
            slot.poison(reason)


AppSlot = Slot[LaneToAppWorker, LaneFromAppWorker, AppCall]
AppSlots = Slots[LaneToAppWorker, LaneFromAppWorker, AppCall]


class Handover:
    """Starts calls on slots. Belongs to the hub's thread; nothing waits."""

    def __init__(self, slots: AppSlots, owner: CallOwner, on_refused: Callable[[], None]) -> None:
        """`on_refused` is called for a call that has left its slot without being handed over."""
        self._slots = slots
        self._owner = owner
        self._on_refused = on_refused
        self._ids = itertools.count(1)

    def start(self, permit: Permit, call: HandedCall, listener: CallListener, is_open: bool) -> AppCall:
        """Hands a call over on the permit's slot; refuses it unless the worker takes calls (`is_open`)."""
        slot = self._slots[permit.slot]
        running = AppCall(next(self._ids), call, permit, listener, slot.channel, self._owner)
        if is_open and permit.is_held:
            slot.begin(running)
            self._send(slot, running)
        else:
            self._refuse_later(running, NotHandedOver("the worker takes no more calls"))
        return running

    def _send(self, slot: AppSlot, call: AppCall) -> None:
        try:
            with TensorPacking() as packing:
                message = call.message(packing, time.monotonic())
                if packing.n_attached < LONG_COPY:
                    slot.send(message, packing.fds())
                    return
        except Exception as error:
            self._refuse_later(call, _error_of(error))
            return
        gevent.spawn(self._send_large, slot, call)

    def _send_large(self, slot: AppSlot, call: AppCall) -> None:
        """Copies large tensors in a thread before it hands the call over. Waits."""
        try:
            with TensorPacking() as packing:
                message = call.message(packing, time.monotonic())
                fds = call_in_thread(packing.fds)
                if slot.call is not call:
                    return  # it was lost meanwhile, with its worker
                if call.is_cancelled:
                    self._refuse(call, CallCancelled("the call was cancelled"))
                    return
                slot.send(msgspec.structs.replace(message, budget_us=call.budgets_us(time.monotonic())), fds)
        except Exception as error:
            self._refuse(call, _error_of(error))

    def _refuse_later(self, call: AppCall, error: CorosrvError) -> None:
        """Ends a call in the hub's next turn: whoever starts it does not know it yet."""
        gevent.get_hub().loop.run_callback(self._refuse, call, error)

    def _refuse(self, call: AppCall, error: CorosrvError) -> None:
        slot = self._slots[call.permit.slot]
        if slot.call is call:
            slot.call = None
        elif call.has_ended:
            return  # lost meanwhile
        if call.permit.is_held:
            call.permit.release()
        call.refuse(error)
        self._on_refused()


def _error_of(error: Exception) -> CorosrvError:
    """Returns why a call could not be handed over."""
    if isinstance(error, FrameTooLarge):
        return CallRefused("the parameters of the call are too large for its worker", "parameters")
    log.error("a call could not be handed over", exc_info=error)
    return NotHandedOver("the call could not be handed to its worker")
