"""The time that the garbage collector took is known afterwards."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from corosrv.base.processor import GarbageTimes, GenerationTotals


@pytest.fixture
def times() -> Iterator[GarbageTimes]:
    gc.disable()  # no collection but those that a test asks for
    times = GarbageTimes()
    times.watch()
    yield times
    gc.callbacks.remove(times._on_collection)
    gc.enable()


def test_a_full_collection_is_kept_with_its_time(times: GarbageTimes) -> None:
    began = time.monotonic()

    gc.collect()

    ended = time.monotonic()
    longest = times.longest_since(began)
    assert longest is not None
    assert longest.generation == 2
    assert times.totals[2] == GenerationTotals(1, longest.seconds, longest.seconds)
    assert began <= longest.began <= longest.began + longest.seconds <= ended
    assert times.longest_since(ended) is None


def test_short_collections_are_not_measured(times: GarbageTimes) -> None:
    gc.collect(0)

    assert times.longest_since(0.0) is None


def test_watching_twice_counts_once(times: GarbageTimes) -> None:
    times.watch()

    gc.collect()

    assert times.totals[2].n == 1
