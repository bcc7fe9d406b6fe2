"""Values that are kept for as long as there is room: those that were used last."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentValues(Generic[Key, Value]):
    """Keeps the values that were used last, as many as may be and as fit into the room.

    Whoever shares it among threads has a lock.
    """

    def __init__(
        self,
        most: float = math.inf,
        most_bytes: float = math.inf,
        size_of: Callable[[Value], int] = lambda value: 0,
    ) -> None:
        """`size_of`: returns the bytes of a value, which do not change."""
        self._most = most
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._values: OrderedDict[Key, Value] = OrderedDict()  # the one used last is the last
        self.n_bytes = 0
        self.n_hits = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Returns a value, and counts that it was there; None if it is not kept."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            self.n_hits += 1
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keeps a value, unless it is larger than all the room. Those used longest ago make room for it."""
        if self._size_of(value) > self._most_bytes:
            return
        self._forget(key)
        self._values[key] = value
        self.n_bytes += self._size_of(value)
        while len(self._values) > self._most or self.n_bytes > self._most_bytes:
            self._forget(next(iter(self._values)))

    def _forget(self, key: Key) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.n_bytes -= self._size_of(value)

    def clear(self) -> None:
        self._values.clear()
        self.n_bytes = 0
