"""Lets other greenlets run in the middle of a long computation."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_TURN = 0.004  # seconds

Item = TypeVar("Item")


class Turns:
    """Divides a greenlet's long computation into turns of some milliseconds; between them other greenlets run.

    Without a hub, or in the hub's own greenlet, the computation is one turn. Does not import gevent in a process that
    has not: such a process has no greenlets.
    """

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.monotonic()

    def give_way(self) -> bool:
        """Lets other greenlets run if this turn has lasted long enough. Returns whether it did."""
        if time.monotonic() - self._began < _TURN:
            return False
        if has_others := _is_greenlet():
            import gevent

            gevent.sleep(1e-6)  # 0 would not poll the sockets: greenlets that wait for one would go on waiting
        self._began = time.monotonic()
        return has_others

    def among(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items. Gives way after each."""
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
