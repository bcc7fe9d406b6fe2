"""Signals that end a server, and that a process which is not ready for them keeps for later."""

from __future__ import annotations

import signal

STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))


def let_stops_through() -> None:
    """The handlers are in place: what was kept comes now. Twice is harmless."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
