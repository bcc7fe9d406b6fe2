"""The contract between the dispatcher and the worker processes that run handlers, and the permits for their slots.

A permit is the right to run one call or batch on a slot. It ends once: released, or poisoned with its slot.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard, InferOutputs, InferRequest
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY, TracePart

log = logging.getLogger("corosrv.permits")


class Permit:
    """The right to use a slot. It ends once: with `release` or `poison`, whichever comes first."""

    __slots__ = ("_pool", "slot")

    def __init__(self, pool: PermitPool, slot: int) -> None:
        self._pool = pool
        self.slot = slot

    @property
    def is_held(self) -> bool:
        return self._pool.holds(self)

    def release(self) -> None:
        """Gives the slot back. Logs a warning and does nothing else if the permit has ended."""
        self._pool.end(self, None)

    def poison(self, reason: str) -> None:
        """Takes the slot out of use for ever. Logs a warning and does nothing else if the permit has ended."""
        self._pool.end(self, reason)


class PermitPool:
    """Owns the permits for the slots of one worker.

    idle + in_use + poisoned + retiring == total after every step. Nothing here waits or switches, so no
    lock is needed on one hub. The slot that was idle longest is next.

    `limit`: the permits that may be held at once, where several servers share the worker; None: all.
    `on_end`: called when a permit has ended, before anybody else hears of it. It must not wait.
    """

    def __init__(self, slots: Iterable[int] = ()) -> None:
        """Raises ValueError if a slot is listed twice."""
        self._idle: deque[int] = deque()
        self._held: dict[int, Permit] = {}
        self._retiring: dict[int, Permit] = {}  # leave the pool when their permit ends
        self._poisoned: dict[int, str] = {}
        self.total = 0
        self.limit: int | None = None
        self.on_end: Callable[[], None] = lambda: None
        for slot in slots:
            self.add(slot)

    @property
    def available(self) -> int:
        n_idle = len(self._idle)
        return n_idle if self.limit is None else max(min(n_idle, self.limit - self.n_held), 0)

    @property
    def n_held(self) -> int:
        """The number of permits that have not ended, those of slots that leave among them."""
        return len(self._held) + len(self._retiring)

    @property
    def in_use(self) -> int:
        return len(self._held)

    @property
    def poisoned(self) -> int:
        return len(self._poisoned)

    @property
    def retiring(self) -> int:
        """The number of slots that leave the pool when their permit ends."""
        return len(self._retiring)

    @property
    def n_usable(self) -> int:
        """The number of slots that can run something, now or when what they run has ended."""
        return self.total - len(self._poisoned) - len(self._retiring)

    @property
    def reasons(self) -> Mapping[int, str]:
        """The reason for each poisoned slot."""
        return MappingProxyType(self._poisoned)

    def __contains__(self, slot: int) -> bool:
        return slot in self._idle or slot in self._held or slot in self._poisoned or slot in self._retiring

    def add(self, slot: int) -> None:
        """Adds an idle slot. Raises ValueError if the pool has it already."""
        if slot in self:
            raise ValueError(f"slot {slot} is named twice: the pool has it already")
        self._idle.append(slot)
        self.total += 1

    def retire(self, slot: int) -> None:
        """Takes a slot out of the pool: at once, or, if it is held, when it is given back or poisoned.

        Raises KeyError for a slot that the pool does not have.
        """
        if slot in self._retiring:
            return
        if (permit := self._held.pop(slot, None)) is not None:
            self._retiring[slot] = permit
            return
        if self._poisoned.pop(slot, None) is None:
            self._remove_idle(slot)
        self.total -= 1

    def try_acquire(self) -> Permit | None:
        """Acquires the slot that was idle longest; returns None if no slot is idle. Never waits."""
        if not self.available:
            return None
        permit = Permit(self, self._idle.popleft())
        self._held[permit.slot] = permit
        return permit

    def poison(self, slot: int, reason: str) -> None:
        """Takes a slot out of use for ever, whether it is held, idle or poisoned; a permit for it ends.

        Raises KeyError for a slot that the pool does not have.
        """
        if slot in self._poisoned or self._leave(slot):
            return
        if self._held.pop(slot, None) is None:
            self._remove_idle(slot)
        self._poisoned[slot] = reason

    def _leave(self, slot: int) -> bool:
        """Removes a slot from the pool if it was retiring; returns whether it was."""
        if self._retiring.pop(slot, None) is None:
            return False
        self.total -= 1
        return True

    def _remove_idle(self, slot: int) -> None:
        try:
            self._idle.remove(slot)
        except ValueError:
            raise KeyError(slot) from None

    def holds(self, permit: Permit) -> bool:
        """Returns whether a permit is still valid: neither released nor poisoned."""
        return permit in (self._held.get(permit.slot), self._retiring.get(permit.slot))

    def end(self, permit: Permit, reason: str | None) -> None:
        """Ends a permit: its slot becomes idle, or is poisoned if there is a reason. Called by Permit."""
        if not self.holds(permit):
            log.warning("a permit for slot %d was given back a second time", permit.slot)
            return
        if reason is not None:
            self.poison(permit.slot, reason)
        elif not self._leave(permit.slot):
            del self._held[permit.slot]
            self._idle.append(permit.slot)
        self.on_end()


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Names slots of one worker that serve the same handlers: a permit of the pool runs one call or batch of any."""

    handlers: tuple[int, ...]  # their positions in HandlerHost.handlers
    permits: PermitPool
    weight: float = 1.0  # its share of the calls beside other workers, for a policy that heeds weights


class HandedItem(msgspec.Struct, frozen=True):
    """Holds one request of a call that is handed over."""

    request: InferRequest
    deadline: float | None = None  # of time.monotonic()
    request_id: str = ""
    caller: str = ""  # whose call it is; the calls that its handler makes are his, too
    priority: int = DEFAULT_PRIORITY
    trace: TracePart | None = None  # that the worker goes on with
    owner: str = ""  # these are of the calls that its handler makes; see corosrv.contracts.jobs.terms.Terms
    tier: int = 0
    weight: float = 1.0
    n_hops: int = 0
    visited: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


class HandedCall(msgspec.Struct, frozen=True):
    """Holds what a worker runs for one of its handlers: one request, or those of a batch."""

    handler: int  # its position in HandlerHost.handlers
    items: Sequence[HandedItem]
    attempt: int = 1
    stream: bool = False
    waiting_keys: tuple[str, ...] = ()  # of the calls that wait for this one, its own among them
    number: int = 0  # of the hand-over; the calls that its handler makes name it as their asker


class CallListener(Protocol):
    """Receives what a handed-over call sends. Only `wait_for_room` may wait.

    Each item gets any number of outputs and then exactly one `on_end`, also if the worker dies. When the last item's
    `on_end` is called, the call's permit has ended.
    """

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None: ...

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        """Takes the end of one item; `error` is None if it ended well.

        WorkerLost: its worker was lost, and it may have run. NotHandedOver: nothing of it has reached the worker.
        """

    def wait_for_room(self) -> None:
        """Waits until more outputs may come; until then the worker's handler waits."""


class RunningCall(Protocol):
    """Stands for a call that was handed over."""

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        """Asks an item to end, or all of them with -1. Its `on_end` still comes. Never waits; twice is harmless."""


class HandlerHost(Protocol):
    """Stands for one worker process that has registered. Belongs to the hub's thread; nothing waits."""

    @property
    def id(self) -> str:
        """The pool and the place in it, as `default/0`; the same for the process that replaces this one."""

    @property
    def incarnation(self) -> int:
        """Grows with every process of a place."""

    @property
    def handlers(self) -> Sequence[HandlerCard]: ...

    @property
    def groups(self) -> Sequence[LaneGroup]: ...

    @property
    def is_draining(self) -> bool:
        """True once no new calls may be handed over."""

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        """Hands a call over on the permit's slot, and owns the permit from then on. Never raises.

        A permit that is released, poisoned or added is told to `on_change` listeners.
        """

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after a change of the permits or of `is_draining`; it must not wait."""
