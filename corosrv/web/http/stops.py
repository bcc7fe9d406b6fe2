"""Signals that end a server, and that a process which is not ready for them keeps for later."""

from __future__ import annotations

import signal

NEVER_STARTS = 4  # gunicorn's own exit status of an app that cannot be loaded: with any other it tries for ever
STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))


def let_stops_through() -> None:
    """Delivers the signals that were held back; call it once the handlers are in place. Twice is harmless."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
