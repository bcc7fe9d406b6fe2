"""Hands calls over to the slots of an app worker; what keeps a call from its slot is the call's own failure."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable

import gevent
import msgspec

from corosrv.base.errors import CallCancelled, CallRefused, CorosrvError, FrameTooLarge, NotHandedOver
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from corosrv.workers.wire.calls import LaneFromAppWorker, LaneToAppWorker
from corosrv.workers.wire.tensors import TensorPacking
from corosrv.workers.worker.parent.app_call import AppCall, CallOwner
from corosrv.workers.worker.parent.asks import LONG_COPY
from corosrv.workers.worker.parent.slots import Slot, Slots

log = logging.getLogger("corosrv.worker")

AppSlot = Slot[LaneToAppWorker, LaneFromAppWorker, AppCall]
AppSlots = Slots[LaneToAppWorker, LaneFromAppWorker, AppCall]


class Handover:
    """Starts calls on slots. Belongs to the hub's thread; nothing waits."""

    def __init__(self, slots: AppSlots, owner: CallOwner, on_refused: Callable[[], None]) -> None:
        """Takes what hears of a call that has left its slot without being handed over."""
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
