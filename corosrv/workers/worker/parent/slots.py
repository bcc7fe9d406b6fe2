"""Finds the slots of a worker by their ids and by their lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic

from corosrv.workers.worker.parent.slot import Call, LaneIn, LaneOut, Slot


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
