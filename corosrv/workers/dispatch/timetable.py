"""Calls functions at their time, with one timer for all of them: deadlines, retries, and the start of batches.

`Agenda` orders the appointments and knows no clock; `HubAlarm` is the one timer of a dispatcher.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from gevent import get_hub


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


class HubAlarm:
    """Calls a function in the hub when a time has come, by one timer, which it moves only forwards.

    One that rings early is set again by whoever it calls.
    """

    def __init__(self, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._at = math.inf
        self._timer: Any = None

    def ring_by(self, at: float) -> None:
        """Calls at this time or before, but not earlier than at any that was named before. Never waits."""
        if at >= self._at:
            return
        self._stop()
        self._at = at
        self._timer = get_hub().loop.timer(max(at - time.monotonic(), 0.0))
        self._timer.start(self._ring)

    def close(self) -> None:
        """Calls no more. Twice is harmless."""
        self._stop()
        self._at = -math.inf

    def _ring(self) -> None:
        self._stop()
        self._at = math.inf
        self._on_ring()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None


AT_ONCE = 256  # appointments of one turn of the hub, so that thousands of them do not hold it


class Timetable:
    """Keeps an agenda. Belongs to the hub's thread; what it calls must not wait."""

    def __init__(self, clock: Callable[[], float], make_alarm: Callable[[Callable[[], None]], HubAlarm]) -> None:
        self._clock = clock
        self._agenda = Agenda()
        self._alarm = make_alarm(self._ring)

    def __len__(self) -> int:
        return len(self._agenda)

    def add(self, at: float, action: Callable[[Any], object], item: Any) -> Appointment:
        """Calls `action` with `item` at a time, unless it is cancelled before."""
        appointment = self._agenda.add(at, action, item)
        self._alarm.ring_by(at)
        return appointment

    def cancel(self, appointment: Appointment | None) -> None:
        """Cancels an appointment, if there is one. Twice is harmless."""
        if appointment is not None:
            self._agenda.cancel(appointment)

    def close(self) -> None:
        """Calls nothing more."""
        self._alarm.close()

    def _ring(self) -> None:
        now = self._clock()
        try:
            for _ in range(AT_ONCE):
                if (due := self._agenda.take_due(now)) is None:
                    break
                action, item = due
                action(item)
        finally:
            if (next_at := self._agenda.next_at) is not None:
                self._alarm.ring_by(next_at)
