"""How long the workers of a pool take to start, and how long calls wait for the first of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.manager.plan import UNLIMITED
from corosrv.workers.manager.pool_memory import PoolMemory, PoolTerms
from corosrv.workers.manager.worker_pool import WorkerPool, terms_of
from tests.workers.manager.scripted import pool_card


class ExpectingDispatcher:
    """Keeps what it was told of each pool."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, str, float | None]] = []

    def expect(
        self, pool: str, cards: Iterable[HandlerCard], *, can_start: bool = True, reason: str = "",
        patience: float | None = None,
    ) -> None:  # fmt: skip
        self.told.append((pool, can_start, reason, patience))


@pytest.fixture
def dispatcher() -> ExpectingDispatcher:
    return ExpectingDispatcher()


def pool_of(dispatcher: ExpectingDispatcher, **options: object) -> WorkerPool:
    card = pool_card("p", **options)
    return WorkerPool(card, terms_of(card, 1), lambda *place: None, dispatcher, UNLIMITED, lambda: 0.0, lambda: None)  # type: ignore[arg-type,return-value]


def test_a_start_takes_as_long_as_it_took_before_and_until_then_as_declared():
    memory = PoolMemory(PoolTerms("p", 0, 1, cold_start=40.0))
    assert memory.cold_start == 40
    assert PoolMemory(PoolTerms("p", 0, 1)).cold_start == 5

    memory.note_ready(2.0)
    assert memory.cold_start == 2

    memory.note_ready(12.0)
    assert memory.cold_start == pytest.approx(5)


def test_a_call_waits_for_the_first_worker_for_three_starts_and_ten_seconds(dispatcher: ExpectingDispatcher):
    pool = pool_of(dispatcher, min_workers=0, max_workers=1, cold_start_ms=20_000)
    assert dispatcher.told == [("p", True, "", 70.0)]

    pool.memory.note_ready(4.0)
    pool.look({}, 1.0)
    pool.look({}, 2.0)

    assert dispatcher.told[1:] == [("p", True, "", 22.0)]


def test_calls_are_not_kept_waiting_for_a_pool_that_may_have_no_worker(dispatcher: ExpectingDispatcher):
    pool = pool_of(dispatcher, min_workers=0, max_workers=1)

    pool.memory.set_limits(0, 0)
    pool.look({}, 1.0)

    assert dispatcher.told[1:] == [("p", False, "the pool p may have no worker", 25.0)]
