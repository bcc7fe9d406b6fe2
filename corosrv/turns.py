"""Giving way to others in the middle of a long computation."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_TURN = 0.004  # seconds

Item = TypeVar("Item")


class Turns:
    """A long computation of a greenlet, in turns of some milliseconds, between which other greenlets run.

    Where there is no hub, or the hub itself computes, there is one turn. Loads nothing: a process that has not
    imported gevent has no greenlets.
    """

    __slots__ = ("_began", "_has_others")

    def __init__(self) -> None:
        self._has_others = _is_greenlet()
        self._began = time.monotonic()

    def give_way(self) -> bool:
        """Lets others run if this turn was long enough, and returns whether it did. May switch greenlets."""
        if not self._has_others or time.monotonic() - self._began < _TURN:
            return False
        import gevent

        gevent.sleep(1e-6)  # with 0, those whose sockets have turned readable would go on waiting
        self._began = time.monotonic()
        return True

    def among(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and gives way behind each."""
        for item in items:
            yield item
            self.give_way()


def _is_greenlet() -> bool:
    """Returns whether a hub can run other greenlets while this computation pauses."""
    if "gevent.hub" not in sys.modules:
        return False
    import gevent.hub
    from gevent._hub_local import get_hub_if_exists

    hub = get_hub_if_exists()
    return hub is not None and gevent.hub.getcurrent() is not hub
