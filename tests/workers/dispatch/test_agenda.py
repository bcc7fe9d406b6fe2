"""Appointments, and the timer that keeps them."""

from __future__ import annotations

import time

import gevent
import gevent.event
from hypothesis import given
from hypothesis import strategies as st

from corosrv.workers.dispatch.timetable import AT_ONCE, Agenda, HubAlarm, Timetable
from tests.workers.dispatch.hosts import FakeClock


def ignore(item: object) -> None: ...


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
def test_what_is_due_comes_in_the_order_of_its_time_unless_it_was_cancelled(entries: list[tuple[int, bool]]):
    agenda = Agenda()
    appointments = [agenda.add(at, ignore, number) for number, (at, _) in enumerate(entries)]
    for appointment, (_, is_cancelled) in zip(appointments, entries, strict=True):
        if is_cancelled:
            agenda.cancel(appointment)
            agenda.cancel(appointment)
    expected = sorted((at, number) for number, (at, is_cancelled) in enumerate(entries) if not is_cancelled)
    assert len(agenda) == len(expected)

    order = []
    while (next_at := agenda.next_at) is not None:
        assert agenda.take_due(next_at - 1) is None
        due = agenda.take_due(next_at)
        assert due is not None
        order.append((next_at, due[1]))

    assert order == expected
    assert len(agenda) == 0


def test_cancelled_appointments_are_not_kept():
    agenda = Agenda()
    agenda.add(1, ignore, None)
    for _ in range(1000):
        agenda.cancel(agenda.add(2, ignore, object()))

    assert len(agenda._heap) < 200
    assert len(agenda) == 1


def test_thousands_of_appointments_do_not_come_in_one_turn():
    clock, kept = FakeClock(), []
    timetable = Timetable(clock, clock.make_alarm)
    for number in range(AT_ONCE + 1):
        timetable.add(clock.now, kept.append, number)

    clock.rings_at = float("inf")
    timetable._ring()

    assert len(kept) == AT_ONCE
    assert clock.rings_at <= clock.now


def test_the_timetable_goes_on_after_an_action_that_raises():
    clock, kept = FakeClock(), []
    timetable = Timetable(clock, clock.make_alarm)
    timetable.add(clock.now + 1, lambda item: 1 // 0, None)
    timetable.add(clock.now + 2, kept.append, "second")

    try:
        clock.pass_time(1)
    except ZeroDivisionError:
        clock.pass_time(5)

    assert kept == ["second"]


def test_the_alarm_rings_by_the_earliest_time_that_was_named():
    rung = gevent.event.Event()
    alarm = HubAlarm(rung.set)

    alarm.ring_by(time.monotonic() + 60)
    alarm.ring_by(time.monotonic() + 0.01)
    alarm.ring_by(time.monotonic() + 60)

    assert rung.wait(5)
    alarm.close()


def test_a_closed_alarm_does_not_ring():
    rung = []
    alarm = HubAlarm(lambda: rung.append(1))
    alarm.ring_by(time.monotonic())
    alarm.close()
    alarm.ring_by(time.monotonic())

    gevent.sleep(0.02)  # the time in which it would ring
    assert not rung
