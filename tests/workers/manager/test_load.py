"""Averages of the slots in use."""

from __future__ import annotations

from corosrv.workers.manager.scaling import LoadWindow


def test_there_is_no_average_over_a_time_that_was_not_seen():
    load = LoadWindow(100.0)
    load.look(3, 0.0, 0.0)
    load.look(3, 0.0, 9.0)

    assert load.mean(10.0) is None
    assert load.mean(9.0) == 3.0


def test_older_times_do_not_count():
    load = LoadWindow(100.0)
    for now in range(200):
        load.look(8 if now < 150 else 1, 0.0, float(now))

    assert load.mean(40.0) == 1.0
    assert load.mean(80.0) == (49 * 1 + 31 * 8) / 80


def test_calls_too_short_to_be_seen_count_when_they_have_ended():
    load = LoadWindow(100.0)
    for now in range(60):
        load.look(0, 0.5 * now, float(now))

    assert load.mean(50.0) == 0.5


def test_what_is_remembered_is_bounded():
    load = LoadWindow(3600.0)
    for now in range(20_000):
        load.look(1, 0.0, float(now))

    assert len(load._times) <= 800
    assert load.mean(3600.0) == 1.0
