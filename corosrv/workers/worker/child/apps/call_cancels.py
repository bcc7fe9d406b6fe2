"""Matches cancels with the calls that they are meant for."""

from __future__ import annotations

import threading
from typing import Protocol

from corosrv.workers.wire.calls import CancelCall


class CancellableCall(Protocol):
    """Describes a running call, as far as cancels are concerned."""

    @property
    def id(self) -> int: ...

    def cancel(self, item: int, *, is_deadline: bool) -> None:
        """Tells an item, or all of them with -1, that it must end. Any thread; must not wait."""


class _SlotCancels:
    def __init__(self) -> None:
        self.running: CancellableCall | None = None
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

    def begin(self, slot: int, call: CancellableCall) -> None:
        """Lets the call be cancelled from now on; early cancels count at once."""
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
