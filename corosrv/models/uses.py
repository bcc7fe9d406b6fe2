"""Counts the uses of a model: jobs that are alive, and calls under way."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable


class Uses:
    """Counts uses. All of it under the pool's lock, but for a use's end, which may come from anywhere.

    Things that are used until they are dropped (readers, vocabularies) may be dropped by the garbage collector, in
    any thread and in the middle of anything: so the end of a use takes no lock, it is noted and counted later.
    """

    def __init__(self, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called at the end of the last use, from wherever that is."""
        self._on_idle = on_idle
        self._n_begun = 0
        self._ended: deque[None] = deque()
        self._alive: set[weakref.ref[object]] = set()  # things that are used until they are dropped
        self.idle_since = time.monotonic()

    @property
    def is_used(self) -> bool:
        while self._ended:
            self._ended.popleft()
            self._n_begun -= 1
        return self._n_begun > 0

    def begin(self) -> None:
        """Counts a use that lasts until end() is called."""
        self._n_begun += 1

    def until_dropped(self, thing: object) -> None:
        """Counts a use that lasts as long as `thing` lives."""
        self._n_begun += 1
        self._alive.add(weakref.ref(thing, self._dropped))

    def _dropped(self, reference: weakref.ref[object]) -> None:
        self._alive.discard(reference)
        self.end()

    def end(self) -> None:
        """Ends a use that begin() counted. Any thread, at any moment."""
        self.idle_since = time.monotonic()
        self._ended.append(None)
        if len(self._ended) == self._n_begun:
            self._on_idle()
