"""Looks at intervals at what has no descriptor to wake anybody: in the hub for all of them at once, or in a thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import gevent.monkey

INTERVAL = 0.01  # seconds

IsReadable = Callable[[], bool]

_local = gevent.monkey.get_original("_thread", "_local")


class PolledSet:
    """Calls a function each time that its source is found readable, in the hub. Belongs to the hub's thread.

    One timer serves all members, and runs only while there are some.
    """

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._pid = os.getpid()
        self._members: dict[IsReadable, Callable[[], None]] = {}
        self._timer: Any = None

    @property
    def is_inherited(self) -> bool:
        """Returns whether this process is a fork of the one that made the set."""
        return os.getpid() != self._pid

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


class _Current(_local):  # type: ignore[misc,valid-type]
    polled: PolledSet | None = None


_current = _Current()


def polled_of(hub: Any) -> PolledSet:
    """Returns the set of the calling thread, whose hub this is."""
    polled = _current.polled
    if polled is None or polled.hub is not hub or polled.is_inherited:
        polled = _current.polled = PolledSet(hub)
    return polled
