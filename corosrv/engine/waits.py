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

from corosrv.engine.edges import edges_of
from corosrv.errors import Misuse

# The thread's own identity and clock-free poll, whatever is monkey-patched.
thread_id: Callable[[], int] = gevent.monkey.get_original("_thread", "get_ident")
_poll = gevent.monkey.get_original("select", "poll")


class TimedOut(Exception):
    """Nothing became readable in time."""


class Waiter:
    """Waits for one descriptor again and again. Owns its watchers: close it before the descriptor is closed."""

    # Whether a descriptor that was written wakes without having been read since the write before.
    is_edge_triggered = False

    def wait(self, timeout: float | None) -> None:
        """Returns when the descriptor is readable; raises TimedOut after `timeout` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Stops watching. Twice is harmless."""

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function where this waiter may be closed. Any thread."""
        function()


class HubWaiter(Waiter):
    """Lets other greenlets run meanwhile, and is woken by edges: what was written once wakes once, read or not.

    A write while nobody waits is remembered for the next wait.
    """

    is_edge_triggered = True

    def __init__(self, hub: Any, fd: int) -> None:
        self._hub = hub
        self._fd = fd
        self._edges = edges_of(hub)
        self._edges.add(fd, self._on_edge)
        self._is_open = True
        self._is_written = False
        self._timer: Any = None
        self._due = 0.0  # when the timer fires
        self._deadline = 0.0  # when the wait ends
        self._greenlet: Any = None

    def wait(self, timeout: float | None) -> None:
        if self._greenlet is not None:
            raise Misuse("another greenlet waits for this reader already; give each greenlet a reader of its own")
        if timeout is None:
            self._deadline = math.inf
        else:
            self._deadline = time.monotonic() + timeout
            if self._timer is None or self._due > self._deadline:
                self._arm(timeout)
        if self._is_written:
            # Not returned from at once: a stream with much to say gives way to the others between two of its pieces.
            self._hub.loop.run_callback(self._on_edge)
        self._greenlet = gevent.hub.getcurrent()
        try:
            is_written = self._hub.switch()
        finally:
            self._greenlet = None
        if not is_written:
            raise TimedOut
        self._is_written = False

    def _on_edge(self) -> None:
        self._is_written = True
        if self._greenlet is not None:
            self._greenlet.switch(True)

    def _arm(self, seconds: float) -> None:
        # The timer is not moved at each wait, unless it would fire too late: when it fires early it goes to sleep for
        # the rest.
        if self._timer is not None:
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
        if self._is_open:
            self._is_open = False
            self._edges.remove(self._fd)
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
    """Waits once, for the descriptor to be readable; raises TimedOut after `timeout` seconds."""
    hub = get_hub_if_exists()
    if hub is None:
        PollWaiter(fd).wait(timeout)
        return
    with gevent.Timeout(timeout, TimedOut()), hub.loop.io(fd, 1) as watcher:
        hub.wait(watcher)


def run_process(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end; other greenlets run meanwhile. Raises subprocess.TimeoutExpired."""
    cooperative = get_hub_if_exists() is not None
    run = gevent.subprocess.run if cooperative else subprocess.run
    return run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False)


def call_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls something that computes for long without the GIL; other greenlets run meanwhile."""
    hub = get_hub_if_exists()
    return function(*arguments) if hub is None else hub.threadpool.apply(function, arguments)
