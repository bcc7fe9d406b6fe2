"""Waiting for a descriptor: through gevent's hub where the thread has one, by polling it in a plain thread."""

from __future__ import annotations

import math
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent.hub
import gevent.monkey
import gevent.subprocess
from gevent._hub_local import get_hub_if_exists

from corosrv.errors import Misuse

# The thread's own identity and clock-free poll, whatever is monkey-patched.
thread_id: Callable[[], int] = gevent.monkey.get_original("_thread", "get_ident")
_poll = gevent.monkey.get_original("select", "poll")


class TimedOut(Exception):
    """Nothing became readable in time."""


class Waiter:
    """Waits for one descriptor again and again. Owns its watchers: close it before the descriptor is closed."""

    def wait(self, timeout: float | None) -> None:
        """Returns when the descriptor is readable; raises TimedOut after `timeout` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Stops watching. Twice is harmless."""

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function where this waiter may be closed. Any thread."""
        function()


class HubWaiter(Waiter):
    """Lets other greenlets run meanwhile.

    One persistent watcher: it costs no system call a wait, where a watcher a wait costs two. While nobody waits it may
    fire once, and stops itself then.
    """

    def __init__(self, hub: Any, fd: int) -> None:
        self._hub = hub
        self._watcher = hub.loop.io(fd, 1)
        self._timer: Any = None
        self._due = 0.0  # when the timer fires
        self._deadline = 0.0  # when the wait ends
        self._greenlet: Any = None

    def wait(self, timeout: float | None) -> None:
        if self._greenlet is not None:
            raise Misuse("another greenlet waits for this reader already; give each greenlet a reader of its own")
        if not self._watcher.active:
            self._watcher.start(self._on_readable)
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        if timeout is not None:
            self._arm(timeout)
        self._greenlet = gevent.hub.getcurrent()
        try:
            is_readable = self._hub.switch()
        finally:
            self._greenlet = None
        if not is_readable:
            raise TimedOut

    def _on_readable(self) -> None:
        if self._greenlet is None:
            self._watcher.stop()
        else:
            self._greenlet.switch(True)

    def _arm(self, seconds: float) -> None:
        # The timer is not moved at each wait, unless it would fire too late: when it fires early it goes to sleep for
        # the rest.
        if self._timer is not None:
            if self._due <= self._deadline:
                return
            self._timer.close()
        self._due = self._deadline
        self._timer = self._hub.loop.timer(seconds)
        self._timer.start(self._on_timer)

    def _on_timer(self) -> None:
        self._timer.close()
        self._timer = None
        if self._greenlet is None or self._deadline == math.inf:
            return
        left = self._deadline - time.monotonic()
        if left > 0:
            self._arm(left)
        else:
            self._greenlet.switch(False)

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def call_soon(self, function: Callable[[], object]) -> None:
        if self._hub.loop is None:
            function()  # the thread has ended, and its watchers with it
        else:
            self._hub.loop.run_callback_threadsafe(function)


class PollWaiter(Waiter):
    """Blocks the thread, as a plain thread may."""

    def __init__(self, fd: int) -> None:
        self._poll = _poll()
        self._poll.register(fd, select.POLLIN)

    def wait(self, timeout: float | None) -> None:
        if not self._poll.poll(None if timeout is None else timeout * 1000):
            raise TimedOut


def waiter(fd: int) -> Waiter:
    """The right waiter for the calling thread."""
    hub = get_hub_if_exists()
    return PollWaiter(fd) if hub is None else HubWaiter(hub, fd)


def wait_readable(fd: int, timeout: float | None = None) -> None:
    """Waits once; raises TimedOut after `timeout` seconds."""
    waiting = waiter(fd)
    try:
        waiting.wait(timeout)
    finally:
        waiting.close()


def run_process(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end; other greenlets run meanwhile. Raises subprocess.TimeoutExpired."""
    cooperative = get_hub_if_exists() is not None
    run = gevent.subprocess.run if cooperative else subprocess.run
    return run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False)


def call_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls something that computes for long without the GIL; other greenlets run meanwhile."""
    hub = get_hub_if_exists()
    return function(*arguments) if hub is None else hub.threadpool.apply(function, arguments)
