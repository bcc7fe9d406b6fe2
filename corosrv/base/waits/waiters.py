"""Waiting for a descriptor: through gevent's hub where the thread has one, by polling it in a plain thread."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from typing import Any

import gevent.hub
import gevent.monkey

from corosrv.base.errors import Misuse
from corosrv.base.waits.edges import EdgeSet, edges_of
from corosrv.base.waits.hubs import own_hub
from corosrv.base.waits.polling import INTERVAL, IsReadable, PolledSet, polled_of

# The thread's own identity, clock-free poll and sleep, whatever is monkey-patched.
thread_id: Callable[[], int] = gevent.monkey.get_original("_thread", "get_ident")
_poll = gevent.monkey.get_original("select", "poll")
_sleep = gevent.monkey.get_original("time", "sleep")


# Asked whether a wait is over, each time the descriptor was written. May run in the hub: it must not wait.
Look = Callable[[], bool]


class TimedOut(Exception):
    """Raised when nothing became readable in time.

    No CorosrvError: whoever waits gives it a meaning, as the reader's ReadTimeout.
    """


def _is_over() -> bool:
    return True


class Waiter:
    """Waits for one descriptor again and again. Owns its watchers: close it before the descriptor is closed."""

    __slots__ = ()

    # Whether a descriptor that was written wakes without having been read since the write before.
    is_edge_triggered = False

    def wait(self, timeout: float | None, look: Look = _is_over) -> None:
        """Returns when the descriptor is readable and `look` says so, or raises what that raises.

        Raises TimedOut after `timeout` seconds in which the descriptor was not written.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stops watching. Twice is harmless."""

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function where this waiter may be closed. Any thread."""
        function()


class HubWaiter(Waiter):
    """Lets other greenlets run meanwhile, and is woken by edges: what was written once wakes once, read or not.

    A write while nobody waits is remembered for the next wait. Without a descriptor `is_readable` is looked at every
    10 ms instead, and what it finds counts as written.
    """

    __slots__ = (
        "_due", "_greenlet", "_hub", "_is_open", "_is_written", "_look", "_set", "_since", "_source", "_timeout",
        "_timer",
    )  # fmt: skip

    is_edge_triggered = True

    def __init__(self, hub: Any, fd: int, is_readable: IsReadable | None = None) -> None:
        """Raises OSError where the descriptor cannot be watched and there is no `is_readable` to look at."""
        self._hub = hub
        self._set: EdgeSet | PolledSet
        self._source: Any
        self._watch(fd, is_readable)
        self._is_open = True
        self._is_written = False
        self._look: Look = _is_over
        self._timer: Any = None
        self._due = 0.0  # when the timer fires
        self._timeout = math.inf
        self._since = 0.0  # the wait's beginning, or the last edge that was looked at
        self._greenlet: Any = None

    def _watch(self, fd: int, is_readable: IsReadable | None) -> None:
        if fd >= 0:
            self._set, self._source = edges_of(self._hub), fd
            try:
                self._set.add(fd, self._on_edge)
                return
            except OSError:  # the set itself needs a descriptor
                if is_readable is None:
                    raise
        assert is_readable is not None
        self._set, self._source = polled_of(self._hub), is_readable
        self._set.add(is_readable, self._on_edge)

    def wait(self, timeout: float | None, look: Look = _is_over) -> None:
        if self._greenlet is not None:
            raise Misuse("another greenlet waits for this reader already; give each greenlet a reader of its own")
        self._timeout = math.inf if timeout is None else timeout
        self._since = time.monotonic()
        if timeout is not None and (self._timer is None or self._due > self._since + timeout):
            self._arm(timeout)
        if self._is_written:
            # Not looked at here: a stream with much to say gives way to the others between two of its pieces.
            self._hub.loop.run_callback(self._on_edge)
        self._look = look
        self._greenlet = gevent.hub.getcurrent()
        try:
            is_written = self._hub.switch()
        finally:
            self._greenlet = None
            self._look = _is_over
        if not is_written:
            raise TimedOut

    def _on_edge(self) -> None:
        if self._greenlet is None or not self._is_open:
            self._is_written = True
            return
        self._is_written = False
        self._since = time.monotonic()
        try:
            is_over = self._look()
        except BaseException as error:  # belongs to the greenlet that waits, not to the hub
            self._greenlet.throw(error)
        else:
            if is_over:
                self._greenlet.switch(True)

    def _arm(self, seconds: float) -> None:
        # The timer is not moved at each edge or wait, unless it would fire too late: when it fires early it goes to
        # sleep for the rest.
        if self._timer is not None:
            self._timer.close()
        self._due = time.monotonic() + seconds
        self._timer = self._hub.loop.timer(seconds)
        self._timer.start(self._on_timer)

    def _on_timer(self) -> None:
        self._timer.close()
        self._timer = None
        if self._greenlet is None or self._timeout == math.inf:
            return
        remaining = self._since + self._timeout - time.monotonic()
        if remaining > 0:
            self._arm(remaining)
        else:
            self._greenlet.switch(False)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._set.remove(self._source)
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

    def wait(self, timeout: float | None, look: Look = _is_over) -> None:
        while True:
            if not self._poll.poll(None if timeout is None else timeout * 1000):
                raise TimedOut
            if look():
                return


class SleepWaiter(Waiter):
    """Blocks the thread, and looks every 10 ms: for what has no descriptor."""

    def __init__(self, is_readable: IsReadable) -> None:
        self._is_readable = is_readable

    def wait(self, timeout: float | None, look: Look = _is_over) -> None:
        seconds = math.inf if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while True:
            if self._is_readable():
                if look():
                    return
                deadline = time.monotonic() + seconds
            elif time.monotonic() >= deadline:
                raise TimedOut
            else:
                _sleep(INTERVAL)


def waiter(fd: int, is_readable: IsReadable | None = None) -> Waiter:
    """Makes the right waiter for the calling thread; `is_readable` is looked at where `fd` is negative."""
    hub = own_hub()
    if hub is not None:
        return HubWaiter(hub, fd, is_readable)
    if fd >= 0:
        return PollWaiter(fd)
    assert is_readable is not None
    return SleepWaiter(is_readable)


def wait_readable(fd: int, timeout: float | None = None) -> None:
    """Waits once, for the descriptor to be readable; raises TimedOut after `timeout` seconds."""
    hub = own_hub()
    if hub is None:
        PollWaiter(fd).wait(timeout)
        return
    with gevent.Timeout(timeout, TimedOut()), hub.loop.io(fd, 1) as watcher:
        hub.wait(watcher)
