"""Bounds the clients that are served at once, with those that wait for an answer and need no greenlet meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Group, Pool


class ClientPool(Pool):  # type: ignore[misc]
    """gevent's pool, in which a client may keep its place while it has no greenlet.

    A greenlet keeps its stacks while it waits, 7 to 12 kilobytes, whatever it waits for. Belongs to the hub's thread.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._n_parked = 0
        self._parking: set[Any] = set()  # greenlets about to end whose clients keep their places

    def __len__(self) -> int:
        """Returns the number of clients, parked ones among them."""
        return super().__len__() + self._n_parked  # type: ignore[no-any-return]

    def park(self) -> None:
        """Lets the client of the current greenlet, which is to end now, keep its place until it is resumed."""
        self._parking.add(gevent.getcurrent())

    def resume(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Serves a client that was parked on its place, in a new greenlet. Never waits."""
        greenlet = self.greenlet_class(serve, *arguments)
        self._n_parked -= 1
        Group.add(self, greenlet)
        greenlet.start()

    def _discard(self, greenlet: Any) -> None:
        if greenlet in self._parking:
            self._parking.remove(greenlet)
            self._n_parked += 1
            Group._discard(self, greenlet)
        else:
            super()._discard(greenlet)
