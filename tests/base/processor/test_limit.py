"""Limits on a computation count its own processor time."""

from __future__ import annotations

import gc
import time

import pytest

from corosrv.base.processor import ProcessorLimit, garbage_times, thread_seconds


def compute(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def test_time_that_passes_is_not_counted() -> None:
    limit = ProcessorLimit(0.05)

    time.sleep(0.1)  # as a pause of the process would

    assert not limit.is_used_up()


def test_a_computation_gets_half_of_its_seconds_at_least_and_no_more_than_all_of_them() -> None:
    limit = ProcessorLimit(0.1)
    began = time.thread_time()

    while not limit.is_used_up():
        compute(0.001)

    assert 0.05 <= time.thread_time() - began < 0.15


def test_computing_is_counted_from_each_start_on() -> None:
    limit = ProcessorLimit(0.05)
    while not limit.is_used_up():
        compute(0.001)

    limit.start()

    assert not limit.is_used_up()
    compute(0.02)
    assert not limit.is_used_up()


@pytest.fixture
def many_objects() -> list[list[int]]:
    """Enough for a collection that takes a while."""
    return [[] for _ in range(300_000)]


def test_a_collection_of_garbage_is_not_counted(many_objects: list[list[int]]) -> None:
    garbage_times.watch()
    began, counted = time.thread_time(), thread_seconds()

    gc.collect()

    taken = time.thread_time() - began
    assert thread_seconds() - counted < taken / 2
