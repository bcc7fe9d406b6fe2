"""Looks after an app worker that is READY: its heartbeat, and calls that do not end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gevent.hub import get_hub

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.worker.parent.handover import AppSlots
from corosrv.workers.worker.parent.watchdog import Watchdog

POISONED_GRACE = 60.0  # seconds that calls without a deadline have, once their worker has a poisoned slot


class AppWatch:
    """Ticks on the hub. What it finds, it tells: `lose` ends the worker at once, `poison` takes a slot out of use."""

    def __init__(
        self,
        lease_s: float,
        hang_grace_s: float,
        slots: AppSlots,
        handlers: Sequence[HandlerCard],
        lose: Callable[[str], None],
        poison: Callable[[int, str], None],
    ) -> None:
        self._lease_s = lease_s
        self._hang_grace_s = hang_grace_s
        self._slots = slots
        self._handlers = handlers
        self._lose = lose
        self._poison = poison
        self._watchdog = Watchdog(lease_s, hang_grace_s, time.monotonic())
        self.flaw = ""  # why a slot was poisoned; the process has to end, then
        self._flawed_until = 0.0  # of time.monotonic(): when it ends at the latest
        period = self._watchdog.period
        self._timer = get_hub().loop.timer(period, repeat=period)
        self._timer.start(self._tick)

    def heartbeat(self, now: float) -> None:
        """Renews the worker's lease."""
        self._watchdog.heartbeat(now)

    def add_flaw(self, slot_id: int, reason: str) -> None:
        """Records that a slot is poisoned. Other calls have until their deadlines; then the worker is lost."""
        if self.flaw:
            return
        self.flaw = reason
        lost = self._slots[slot_id].call
        longest = time.monotonic() + POISONED_GRACE
        others = (call.deadline or longest for call in self._slots.calls if call is not lost)
        self._flawed_until = max(others, default=0.0)

    def _tick(self) -> None:
        now = time.monotonic()
        self._watchdog.tick(now)
        if self._watchdog.is_lost(now):
            self._lose(f"no heartbeat came for {self._lease_s:g} s")
            return
        for call in list(self._slots.calls):
            call.cancel_overdue(now)
            if self._watchdog.hangs(call.should_end_at, now):
                name = self._handlers[call.handler].name
                grace = f"{self._hang_grace_s:g} s"
                self._poison(call.permit.slot, f"handler {name!r} went on for {grace} after its cancel or its deadline")
        if self.flaw and now >= self._flawed_until:
            self._lose(self.flaw)

    def close(self) -> None:
        """Stops the ticks. Later calls do nothing."""
        self._timer.close()
