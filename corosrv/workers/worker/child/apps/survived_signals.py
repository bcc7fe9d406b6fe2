"""Keeps a worker alive when a terminal sends its signals to all processes at once: the server alone ends it."""

from __future__ import annotations

import os
import signal
import threading

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def install() -> None:
    """Lets the worker survive them, while copies that a handler forks end as any process. In the main thread."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in _NUMBERS}
    masks = threading.local()

    def before_fork() -> None:
        # A signal that reaches the copy before it has its own handlers would be lost.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)

    def after_in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def after_in_child() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    os.register_at_fork(before=before_fork, after_in_parent=after_in_parent, after_in_child=after_in_child)
