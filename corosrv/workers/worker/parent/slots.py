"""Finds the slots of a worker by their ids and by their lanes.

Follows one slot of a worker on the server's side: the call that runs there, and its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from corosrv.base.errors import ChannelClosed, ProtocolError
from corosrv.workers.dispatch.host import Permit, PermitPool
from corosrv.workers.wire.gevent_channel import GeventChannel

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
    """Passes messages of lanes on to their slots, in whose order the lanes are."""

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
