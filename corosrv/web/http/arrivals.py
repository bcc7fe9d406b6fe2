"""Connections that were accepted and are not served yet: whoever asks for health goes first, the others in order."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

# Small enough that a turn in which thousands connect is short, large enough to see most of them in their first turn.
_LOOKS = 512
_URGENT = re.compile(rb"(?:GET|HEAD) [^ ?]*/health(?:-check)?[ ?]")
_LINE = 128  # bytes: more than an urgent request line has


class Arrival:
    """One accepted connection: the plain socket, which nobody has read from, and the client's address."""

    __slots__ = ("address", "is_taken", "socket")

    def __init__(self, socket: Any, address: Any) -> None:
        self.socket = socket
        self.address = address
        self.is_taken = False

    def peek(self) -> bytes | None:
        """Returns the beginning of what the client has sent; None before it has sent anything. Never waits."""
        try:
            return self.socket.recv(_LINE, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # type: ignore[no-any-return]
        except BlockingIOError:
            return None
        except OSError:  # it was reset: whoever serves it will see
            return b""


class Arrivals:
    """The queue of them. Never waits; belongs to the hub."""

    def __init__(self) -> None:
        self._in_order: deque[Arrival] = deque()
        self._silent: deque[Arrival] = deque()  # nothing was seen of these yet
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def add(self, arrival: Arrival) -> None:
        self._in_order.append(arrival)
        self._silent.append(arrival)
        self._n_waiting += 1

    def take(self, n: int) -> Iterator[Arrival]:
        """Takes those that ask for health, all that are seen now, and then the next `n` in order."""
        for _ in range(min(_LOOKS, len(self._silent))):
            arrival = self._silent.popleft()
            if not arrival.is_taken and self._is_urgent(arrival):
                yield self._mark_taken(arrival)
        while n and self._in_order:
            arrival = self._in_order.popleft()
            if not arrival.is_taken:
                n -= 1
                yield self._mark_taken(arrival)

    def _is_urgent(self, arrival: Arrival) -> bool:
        data = arrival.peek()
        if data is None:
            self._silent.append(arrival)
            return False
        return _URGENT.match(data) is not None

    def _mark_taken(self, arrival: Arrival) -> Arrival:
        arrival.is_taken = True
        self._n_waiting -= 1
        return arrival
