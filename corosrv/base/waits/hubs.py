"""The hub of the calling thread, if it has one, and what is done by a greenlet there and by a thread elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gevent
import gevent.monkey
from gevent._hub_local import get_hub_if_exists

# A lock of the system's, whatever is monkey-patched: for code that never waits while it holds the lock. gevent's own
# costs ten times as much, because its holder may be a greenlet that waits.
ThreadLock: Callable[[], Any] = gevent.monkey.get_original("_thread", "allocate_lock")


def own_hub() -> Any | None:
    """Returns the hub of the calling thread, or None where it has none, and so may block. Makes none."""
    return get_hub_if_exists()


def spawn(name: str, function: Callable[..., object], *arguments: object) -> None:
    """Runs a function in a greenlet, or in a thread of this name where there is no hub. Returns at once."""
    if own_hub() is not None:
        gevent.spawn(function, *arguments)
    else:
        threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def call_later(seconds: float, function: Callable[[], object]) -> None:
    """Calls a function after a while: in a greenlet, or in a thread where there is no hub. Returns at once."""
    if own_hub() is not None:
        gevent.spawn_later(seconds, function)
        return
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
