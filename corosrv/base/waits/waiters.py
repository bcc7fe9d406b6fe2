"""Waits for descriptors: through gevent's hub where the thread has one, and by polling in a plain thread.

All greenlets of a hub share one epoll set (`EdgeSet`): one call tells which of thousands of descriptors were written. A
source without a descriptor is looked at in intervals, by one `PolledSet` for each hub, or by a thread that sleeps.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Callable, Container
from typing import Any

import gevent.hub
import gevent.monkey

from corosrv.base.errors import Misuse
from corosrv.base.waits.elsewhere import own_hub

INTERVAL = 0.01  # seconds

IsReadable = Callable[[], bool]

_local = gevent.monkey.get_original("_thread", "_local")


class _HubSet:
    """The sources that one hub waits for. Belongs to the hub's thread."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Returns whether this process is a fork of the one that made the set, which must not touch it."""
        return os.getpid() != self._pid


class PolledSet(_HubSet):
    """Calls a function each time that its source is found readable, in the hub. Belongs to the hub's thread.

    One timer serves all members, and runs only while there are some.
    """

    def __init__(self, hub: Any) -> None:
        super().__init__(hub)
        self._members: dict[IsReadable, Callable[[], None]] = {}
        self._timer: Any = None

    def add(self, is_readable: IsReadable, on_readable: Callable[[], None]) -> None:
        """Calls `on_readable` at every look that finds the source readable. `is_readable` must not wait."""
        self._members[is_readable] = on_readable
        if self._timer is None:
            self._timer = self.hub.loop.timer(INTERVAL, INTERVAL)
            self._timer.start(self._look)

    def remove(self, is_readable: IsReadable) -> None:
        """Looks at this source no more."""
        if self.is_inherited:
            return
        del self._members[is_readable]
        if not self._members:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def _look(self) -> None:
        if self.is_inherited:
            self._timer.stop()
            return
        # Each call may run a greenlet up to its next wait, and that may add and remove.
        for is_readable, on_readable in list(self._members.items()):
            if is_readable in self._members and is_readable():
                try:
                    on_readable()
                except BaseException:  # of a bare greenlet that ended: the others are readable as well
                    self.hub.handle_error(on_readable, *sys.exc_info())


# Woken in one go. The hub looks at everything else in between: new connections, timers, clients that left.
AT_ONCE = 128

_epoll = gevent.monkey.get_original("select", "epoll")


class EdgeSet(_HubSet):
    """Calls a function each time a descriptor is written, in the hub. Belongs to the hub's thread.

    Edge-triggered: a descriptor that was written once is told of once, whether it is read or not, so nobody has to
    read it; the next write is a new edge. The set itself is level-triggered, and watched by the hub through the one
    watcher that it has; both are there only while the set has members.
    """

    def __init__(self, hub: Any) -> None:
        super().__init__(hub)
        self._members: dict[int, Callable[[], None]] = {}
        self.ended: set[int] = set()  # descriptors whose other end was closed, or which failed
        self._epoll: Any = None
        self._watcher: Any = None

    def add(self, fd: int, on_edge: Callable[[], None]) -> None:
        """Calls `on_edge` at each write from now on, and at once if the descriptor is readable. Raises OSError."""
        if self._epoll is None:
            self._open()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)
        self._members[fd] = on_edge

    def remove(self, fd: int) -> None:
        """Ends the calls; call it before the descriptor is closed.

        An edge already being delivered may still reach the next owner of this descriptor number.
        """
        if os.getpid() != self._pid:  # see is_inherited: one call less for each wait
            return
        del self._members[fd]
        self.ended.discard(fd)
        self._epoll.unregister(fd)
        if not self._members:
            self._close()

    def _open(self) -> None:
        self._epoll = _epoll()
        self._watcher = self.hub.loop.io(self._epoll.fileno(), 1)
        self._watcher.start(self._on_edges)

    def _close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        self._epoll.close()
        self._watcher = self._epoll = None

    def _on_edges(self) -> None:
        if os.getpid() != self._pid:  # see is_inherited: one call less for each wait
            self._watcher.stop()
            return
        members = self._members
        # Each call may run a greenlet up to its next wait, and that may add and remove.
        for fd, events in self._epoll.poll(0, AT_ONCE):
            if on_edge := members.get(fd):
                if events != select.EPOLLIN:
                    self.ended.add(fd)
                try:
                    on_edge()
                except BaseException:  # of a bare greenlet that ended: the others were told of as well, and only once
                    self.hub.handle_error(on_edge, *sys.exc_info())


class _OwnSets(_local):  # type: ignore[misc,valid-type]
    polled: PolledSet | None = None
    edges: EdgeSet | None = None


_own_sets = _OwnSets()


def polled_of(hub: Any) -> PolledSet:
    """Returns the set of the calling thread, whose hub this is."""
    polled = _own_sets.polled
    if polled is None or polled.hub is not hub or polled.is_inherited:
        polled = _own_sets.polled = PolledSet(hub)
    return polled


def edges_of(hub: Any) -> EdgeSet:
    """Returns the set of the calling thread, whose hub this is."""
    edges = _own_sets.edges
    if edges is None or edges.hub is not hub or edges.is_inherited:
        edges = _own_sets.edges = EdgeSet(hub)
    return edges


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

    @property
    def ended_numbers(self) -> Container[int] | None:
        """Returns what holds the descriptors whose other ends are closed; None where nobody knows.

        Of any other, whoever has read less than was asked for is woken by what comes next, an end as well.
        """
        return None

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function where this waiter may be closed. Any thread."""
        function()


class HubWaiter(Waiter):
    """Waits in the hub, while other greenlets run. Each write wakes it once, whether or not anybody reads.

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

    @property
    def ended_numbers(self) -> Container[int] | None:
        return self._set.ended if isinstance(self._set, EdgeSet) else None

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
