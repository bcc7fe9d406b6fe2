"""The pauses after crashes, and when a pool is said to loop."""

from __future__ import annotations

import pytest

from corosrv.workers.manager.pool_memory import CrashRecord


@pytest.fixture
def record() -> CrashRecord:
    return CrashRecord(jitter=lambda: 1.0)


def test_the_pause_doubles_up_to_half_a_minute(record: CrashRecord):
    assert [record.add(now=100.0 * n) for n in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_no_start_before_the_pause_is_over(record: CrashRecord):
    record.add(now=10.0)

    assert record.retry_at == 10.5


def test_a_minute_of_health_makes_the_next_crash_the_first_again(record: CrashRecord):
    for n in range(5):
        record.add(now=100.0 * n)

    assert record.add(now=570.0, ready_since=511.0) == 16
    assert record.add(now=700.0, ready_since=640.0) == 0.5


def test_workers_from_before_the_crash_prove_nothing(record: CrashRecord):
    record.add(now=100.0)
    record.note_well(now=1000.0, ready_since=50.0)
    assert record.has_crashed

    record.note_well(now=1000.0, ready_since=940.0)
    assert not record.has_crashed


def test_five_crashes_in_a_minute_are_a_loop(record: CrashRecord):
    for now in (0.0, 20.0, 30.0, 40.0, 61.0):
        record.add(now)
    assert not record.is_looping

    assert record.add(now=62.0) == 30
    assert record.is_looping


def test_five_crashes_in_just_a_minute_are_a_loop(record: CrashRecord):
    for now in (0.0, 15.0, 30.0, 45.0, 60.0):
        record.add(now)

    assert record.is_looping


def test_a_pool_that_loops_goes_on_to_start_every_half_minute(record: CrashRecord):
    for now in range(5):
        record.add(float(now))

    assert [record.add(200.0 * n, reason="no licence") for n in (1, 2)] == [30, 30]
    assert record.is_looping
    assert record.last_reason == "no licence"


def test_without_crashes_nothing_is_to_be_forgotten(record: CrashRecord):
    record.note_well(now=1000.0, ready_since=10.0)

    assert (record.has_crashed, record.retry_at, record.last_reason) == (False, 0.0, "")


def test_a_loop_ends_with_a_minute_of_health(record: CrashRecord):
    for now in range(5):
        record.add(float(now))
    assert record.is_looping

    record.note_well(now=99.9, ready_since=40.0)
    assert record.is_looping
    record.note_well(now=100.0, ready_since=40.0)
    assert not record.is_looping
    assert record.retry_at == 0.0


def test_pauses_are_spread_and_never_longer():
    pauses = [CrashRecord().add(0.0) for _ in range(200)]

    assert 0.25 <= min(pauses) < 0.3
    assert 0.45 < max(pauses) <= 0.5
