"""Full collections run while few clients are there."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator

import pytest

from corosrv.web.http.heap import FullCollections, unfreeze


@pytest.fixture
def full() -> Iterator[FullCollections]:
    """Takes the place of Python's own way, which comes back."""
    thresholds = gc.get_threshold()
    full = FullCollections()
    full.take_over()
    yield full
    gc.set_threshold(*thresholds)
    unfreeze()
    atexit.unregister(unfreeze)


class Cycle:
    """Garbage that only the collector finds; says when it is gone."""

    n_alive = 0

    def __init__(self) -> None:
        self.self = self
        Cycle.n_alive += 1

    def __del__(self) -> None:
        Cycle.n_alive -= 1


def old_garbage() -> None:
    """Leaves a cycle that has lived for so long that only a full collection finds it."""
    cycle = Cycle()
    for _ in range(12):
        gc.collect(1)
    assert cycle.self is cycle


def test_what_is_there_at_the_beginning_is_never_looked_at_again(full: FullCollections) -> None:
    assert gc.get_freeze_count() > 1000


def test_old_garbage_goes_while_few_clients_are_there(full: FullCollections) -> None:
    old_garbage()
    assert Cycle.n_alive == 1

    full.look(n_clients=10_000)
    assert Cycle.n_alive == 1
    full.look(n_clients=3)
    assert Cycle.n_alive == 0


def test_what_the_first_requests_loaded_is_frozen_when_they_are_over(full: FullCollections) -> None:
    before, loaded = gc.get_freeze_count(), [[] for _ in range(5000)]
    old_garbage()

    full.look(n_clients=0)

    assert gc.get_freeze_count() >= before + len(loaded)


def test_python_itself_makes_no_full_collection_any_more(full: FullCollections) -> None:
    n_before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(400_000)]

    assert gc.get_stats()[2]["collections"] == n_before
    assert len(kept) == 400_000


def test_a_server_that_is_never_idle_collects_when_it_was_put_off_for_very_long(full: FullCollections) -> None:
    old_garbage()
    for _ in range(2000):
        gc.collect(1)

    full.look(n_clients=10_000)

    assert Cycle.n_alive == 0
