"""Calls functions at their time, with one timer for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.workers.dispatch.agenda import Agenda, Appointment
from corosrv.workers.dispatch.alarm import Alarm

AT_ONCE = 256  # appointments of one turn of the hub, so that thousands of them do not hold it


class Timetable:
    """Keeps an agenda. Belongs to the hub's thread; what it calls must not wait."""

    def __init__(self, clock: Callable[[], float], make_alarm: Callable[[Callable[[], None]], Alarm]) -> None:
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
