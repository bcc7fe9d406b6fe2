"""One epoll set for all descriptors that a hub's greenlets wait for: one call tells which of thousands were written."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any

import gevent.monkey

# Woken in one go. The hub looks at everything else in between: new connections, timers, clients that left.
AT_ONCE = 128

_epoll = gevent.monkey.get_original("select", "epoll")
_local = gevent.monkey.get_original("_thread", "_local")


class EdgeSet:
    """Calls a function each time a descriptor is written, in the hub. Belongs to the hub's thread.

    Edge-triggered: a descriptor that was written once is told of once, whether it is read or not, so nobody has to
    read it; the next write is a new edge. The set itself is level-triggered, and watched by the hub through the one
    watcher that it has; both are there only while the set has members.
    """

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._pid = os.getpid()
        self._members: dict[int, Callable[[], None]] = {}
        self._epoll: Any = None
        self._watcher: Any = None

    @property
    def is_inherited(self) -> bool:
        """This process is a fork of the one that made the set, which is still the parent's: hands off."""
        return os.getpid() != self._pid

    def add(self, fd: int, on_edge: Callable[[], None]) -> None:
        """Calls `on_edge` at each write from now on, and at once if the descriptor is readable. Raises OSError."""
        if self._epoll is None:
            self._open()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        self._members[fd] = on_edge

    def remove(self, fd: int) -> None:
        """Ends the calls; call it before the descriptor is closed.

        An edge already being delivered may still reach the next owner of this descriptor number.
        """
        if self.is_inherited:
            return
        del self._members[fd]
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
        if self.is_inherited:
            self._watcher.stop()
            return
        members = self._members
        # Each call may run a greenlet up to its next wait, and that may add and remove.
        for fd, _ in self._epoll.poll(0, AT_ONCE):
            if on_edge := members.get(fd):
                try:
                    on_edge()
                except BaseException:  # of a bare greenlet that ended: the others were told of as well, and only once
                    self.hub.handle_error(on_edge, *sys.exc_info())


class _Current(_local):  # type: ignore[misc,valid-type]
    edges: EdgeSet | None = None


_current = _Current()


def edges_of(hub: Any) -> EdgeSet:
    """Returns the set of the calling thread, whose hub this is."""
    edges = _current.edges
    if edges is None or edges.hub is not hub or edges.is_inherited:
        edges = _current.edges = EdgeSet(hub)
    return edges
