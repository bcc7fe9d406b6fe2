"""Giving way to others in the middle of a long computation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import gevent
import gevent.hub
from gevent._hub_local import get_hub_if_exists

_TURN = 0.004  # seconds

Item = TypeVar("Item")


class Turns:
    """A long computation of a greenlet, in turns of some milliseconds, between which the others run.

    Where there is no hub, or it is the hub itself that computes, there is one turn.
    """

    __slots__ = ("_began", "_has_others")

    def __init__(self) -> None:
        hub = get_hub_if_exists()
        self._has_others = hub is not None and gevent.hub.getcurrent() is not hub
        self._began = time.monotonic()

    def give_way(self) -> bool:
        """Lets others run, if this turn was long enough, and says whether it was. May switch greenlets."""
        if not self._has_others or time.monotonic() - self._began < _TURN:
            return False
        gevent.sleep(1e-6)  # with 0, those whose sockets have turned readable would go on waiting
        self._began = time.monotonic()
        return True

    def among(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a look at the clock behind each."""
        for item in items:
            yield item
            self.give_way()
