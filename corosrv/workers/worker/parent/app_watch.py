"""Looks after an app worker that is READY: its heartbeat, and calls that do not end.

`Watchdog` decides when the worker is lost and when a call hangs; the time is passed in. What the worker prints goes
into the server's log, line by line and within a limit (`OutputLog`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from gevent.hub import get_hub

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.worker.parent.slots import AppSlots

printed = logging.getLogger("corosrv.handler")

LINES_PER_SECOND = 500.0  # of one worker, in the long run
BURST = 1000.0  # lines; all of them may come in one turn of the hub
MAX_LINE = 16 << 10  # characters; the rest of a longer line is left out


class LineBudget:
    """Limits lines over time; once it is spent, it stays so for a second. The caller passes the current time in."""

    def __init__(self, now: float, rate: float = LINES_PER_SECOND, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._room = burst
        self._filled = now
        self._is_spent = False

    def take(self, n_lines: int, now: float) -> int:
        """Returns how many of these lines may be written."""
        self._room = min(self._burst, self._room + (now - self._filled) * self._rate)
        self._filled = now
        if self._is_spent and self._room < min(self._rate, self._burst):
            return 0
        n_allowed = min(n_lines, int(self._room))
        self._room -= n_allowed
        self._is_spent = n_allowed < n_lines
        return n_allowed


class OutputLog:
    """Writes the lines of one worker. A flood is cut: the log says how much of it was left out."""

    def __init__(self, budget: LineBudget) -> None:
        self._budget = budget
        self._n_omitted = 0

    def write(self, origin: str, source: str, text: str, now: float) -> None:
        """Writes each line of `text` with who printed it, and whether it went to stdout or stderr."""
        text = text.removesuffix("\n")
        n_lines = text.count("\n") + 1
        n_allowed = self._budget.take(n_lines, now)
        if n_allowed and self._n_omitted:
            printed.warning("%s printed too fast: %d lines were left out", origin, self._n_omitted)
            self._n_omitted = 0
        for line in text.split("\n", n_allowed)[:n_allowed]:
            printed.info("%s %s: %s", origin, source, line[:MAX_LINE])
        self._n_omitted += n_lines - n_allowed


_TICKS_OF_A_LEASE = 10
_TICKS_OF_A_GRACE = 4
_TICK = 0.01, 1.0  # seconds, at least and at most


class Watchdog:
    """Judges one worker. The caller passes the current time in and ticks every `period` seconds; nothing waits.

    A tick that comes much too late tells that this process itself stood still, with heartbeats and ends unread: then
    all times begin anew.
    """

    def __init__(self, lease: float, hang_grace: float, now: float) -> None:
        """Takes seconds. `lease`: without a heartbeat; `hang_grace`: that a call may go on which should have ended."""
        self._lease = lease
        self._hang_grace = hang_grace
        shortest, longest = _TICK
        self.period = max(shortest, min(longest, lease / _TICKS_OF_A_LEASE, hang_grace / _TICKS_OF_A_GRACE))
        self._longest_gap = max(2 * self.period, lease / 4)
        self._renewed = now
        self._ticked = now
        self._awake_since = now

    def heartbeat(self, now: float) -> None:
        self._renewed = now

    def tick(self, now: float) -> None:
        """Records that this process runs."""
        if now - self._ticked > self._longest_gap:
            self._renewed = self._awake_since = now
        self._ticked = now

    def is_lost(self, now: float) -> bool:
        """Returns whether the lease has expired."""
        return now - self._renewed >= self._lease

    def hangs(self, should_end_at: float | None, now: float) -> bool:
        """Returns whether a call hangs that should have ended at a time; None: it may go on."""
        return should_end_at is not None and now - max(should_end_at, self._awake_since) >= self._hang_grace


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
