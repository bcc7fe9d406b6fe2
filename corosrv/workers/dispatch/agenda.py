"""Keeps what is to be done at which time: deadlines, pauses between attempts, ends of gathering."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Appointment:
    """Names something to do at a time. `action` is called with `item`; both are dropped once it is cancelled."""

    __slots__ = ("action", "at", "item")

    def __init__(self, at: float, action: Callable[[Any], object], item: Any) -> None:
        self.at = at
        self.action: Callable[[Any], object] | None = action
        self.item = item

    @property
    def is_cancelled(self) -> bool:
        return self.action is None


class Agenda:
    """Orders appointments by their time. The time is passed in; nothing waits and nothing is called here."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Appointment]] = []
        self._numbers = itertools.count()
        self._n_cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._n_cancelled

    @property
    def next_at(self) -> float | None:
        """The time of the next appointment; None if there is none."""
        while self._heap and self._heap[0][2].is_cancelled:
            heapq.heappop(self._heap)
            self._n_cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, action: Callable[[Any], object], item: Any) -> Appointment:
        appointment = Appointment(at, action, item)
        heapq.heappush(self._heap, (at, next(self._numbers), appointment))
        return appointment

    def cancel(self, appointment: Appointment) -> None:
        """Cancels an appointment. Does nothing if it was cancelled or taken."""
        if appointment.is_cancelled:
            return
        appointment.action = appointment.item = None
        self._n_cancelled += 1
        if 2 * self._n_cancelled > len(self._heap) + 64:
            self._heap = [place for place in self._heap if not place[2].is_cancelled]
            heapq.heapify(self._heap)
            self._n_cancelled = 0

    def take_due(self, now: float) -> tuple[Callable[[Any], object], Any] | None:
        """Removes the next appointment whose time has come, and returns its action and item."""
        next_at = self.next_at
        if next_at is None or next_at > now:
            return None
        appointment = heapq.heappop(self._heap)[2]
        action, item = appointment.action, appointment.item
        appointment.action = appointment.item = None
        assert action is not None
        return action, item
