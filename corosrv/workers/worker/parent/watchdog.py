"""Decides from heartbeats and times when a worker is lost, and when a call hangs."""

from __future__ import annotations

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
        """Renews the lease."""
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
