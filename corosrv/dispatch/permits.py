"""The right to run one job on one slot: acquired, and given back or poisoned."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType

log = logging.getLogger("corosrv.permits")


class Permit:
    """A slot, held. It ends once: in `release` or in `poison`, whichever comes first."""

    __slots__ = ("_pool", "slot")

    def __init__(self, pool: PermitPool, slot: int) -> None:
        self._pool = pool
        self.slot = slot

    @property
    def is_held(self) -> bool:
        return self._pool.holds(self)

    def release(self) -> None:
        """Gives the slot back. Does nothing, and says so in the log, when the permit has ended."""
        self._pool.end(self, None)

    def poison(self, reason: str) -> None:
        """Takes the slot out of use for ever. Does nothing, and says so in the log, when the permit has ended."""
        self._pool.end(self, reason)


class PermitPool:
    """The slots of one worker, and who holds them: available + in_use + poisoned == total after every step.

    Nothing here waits or switches, so that on one hub it needs no lock. The slot that was idle longest is next.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self._idle = deque(slots)
        self._held: dict[int, Permit] = {}
        self._poisoned: dict[int, str] = {}
        self.total = len(self._idle)
        if len(set(self._idle)) != self.total:
            raise ValueError(f"a slot is named twice: {list(self._idle)}")

    @property
    def available(self) -> int:
        return len(self._idle)

    @property
    def in_use(self) -> int:
        return len(self._held)

    @property
    def poisoned(self) -> int:
        return len(self._poisoned)

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why the poisoned slots are."""
        return MappingProxyType(self._poisoned)

    def try_acquire(self) -> Permit | None:
        """An idle slot, or None. Never waits."""
        if not self._idle:
            return None
        permit = Permit(self, self._idle.popleft())
        self._held[permit.slot] = permit
        return permit

    def poison(self, slot: int, reason: str) -> None:
        """Takes a slot out of use for ever, also one that is idle or poisoned already; who holds it holds nothing more.

        Raises KeyError for a slot that the pool does not have.
        """
        if slot in self._poisoned:
            return
        if self._held.pop(slot, None) is None:
            try:
                self._idle.remove(slot)
            except ValueError:
                raise KeyError(slot) from None
        self._poisoned[slot] = reason

    def holds(self, permit: Permit) -> bool:
        return self._held.get(permit.slot) is permit

    def end(self, permit: Permit, reason: str | None) -> None:
        """Called by permits: a slot goes back, or with a reason out of use."""
        if not self.holds(permit):
            log.warning("a permit for slot %d was given back a second time", permit.slot)
        elif reason is not None:
            self.poison(permit.slot, reason)
        else:
            del self._held[permit.slot]
            self._idle.append(permit.slot)
