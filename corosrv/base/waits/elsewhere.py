"""Runs what would block the hub in a thread or a process of its own, while other greenlets run.

Where the calling thread has no hub, `spawn` and `call_later` use a thread instead of a greenlet. `AwakeClock` stands
still while this process cannot run: stopped, frozen with its container, or with its hub blocked.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import gevent
import gevent.monkey
import gevent.subprocess
from gevent._hub_local import get_hub_if_exists

# A lock of the system's, whatever is monkey-patched: for code that never waits while it holds the lock. gevent's own
# costs ten times as much, because its holder may be a greenlet that waits.
ThreadLock: Callable[[], Any] = gevent.monkey.get_original("_thread", "allocate_lock")


# Returns the hub of the calling thread, or None where it has none, and so may block. Makes none.
own_hub: Callable[[], Any | None] = get_hub_if_exists


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


class AwakeClock:
    """Seconds in which this process could serve. Limits on clients count these: a pause is not the client's fault.

    Whoever serves calls `beat` once a second, from the hub. A beat that comes late tells of a pause, and so does one
    that is overdue now: then nothing is counted since the clock was last read. Without beats it is the monotonic
    clock. Never goes backwards, never waits.
    """

    __slots__ = ("_highest", "_interval", "_late_from", "_lost", "_read")

    def __init__(self, read: Callable[[], float] = time.monotonic, interval: float = 1.25) -> None:
        """`interval`: seconds after which the next beat is late."""
        self._read = read
        self._interval = interval
        self._late_from = math.inf
        self._lost = 0.0
        self._highest = 0.0  # that was ever returned

    def now(self) -> float:
        """Returns the time, in seconds from some fixed moment."""
        read = self._read()
        if read <= self._late_from:
            self._highest = read - self._lost
        return self._highest

    def beat(self) -> None:
        """Marks that the hub runs now."""
        read = self._read()
        if read > self._late_from:
            self._lost = read - self._highest
        self._late_from = read + self._interval

    def stop(self) -> None:
        """Runs on without beats, as a monotonic clock does."""
        self.beat()
        self._late_from = math.inf


# The clock of the process: its worker beats it.
awake_clock = AwakeClock()


P = ParamSpec("P")
T = TypeVar("T")


def run_process(
    command: Sequence[str], timeout: float, read: bytes = b"", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, which reads these bytes; other greenlets run meanwhile.

    `environment`: all of its variables; None: those of this process.
    Raises subprocess.TimeoutExpired.
    """
    cooperative = own_hub() is not None
    run = gevent.subprocess.run if cooperative else subprocess.run
    return run(command, input=read, capture_output=True, timeout=timeout, check=False, env=environment)


def call_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Calls something that computes for long without the GIL; other greenlets run meanwhile."""
    hub = own_hub()
    if hub is None:
        return function(*arguments, **keywords)
    result: T
    result, error = hub.threadpool.apply(_outcome, (function, arguments, keywords))
    if error is not None:
        raise error
    return result


def _outcome(
    function: Callable[..., T], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[T | None, Exception | None]:
    """Returns what a call returns or raises: gevent prints what a thread of its pool raises, whoever may expect it."""
    try:
        return function(*arguments, **keywords), None
    except Exception as error:  # whatever it is, the caller gets it
        return None, error
