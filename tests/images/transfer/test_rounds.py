"""Rounds of one transfer: each grant is copied, freed and followed by the next exactly once."""

from __future__ import annotations

import pytest

from corosrv.images.transfer.session import Poll, TransferResult
from corosrv.images.transfer.stats import TraceKind
from tests.images.transfer.broken_cores import TupleGuardedScheduler, UnguardedScheduler
from tests.images.transfer.rules import RULES
from tests.images.transfer.world import World

COUNTED = (TraceKind.COPY, TraceKind.FREE, TraceKind.ALLOCATE, TraceKind.GRANT)


def loop(world: World) -> str:
    """Ticks once, and says how often it copied, freed, allocated and granted."""
    n_events = world.core.trace.n_events
    world.core.tick()
    world.check()
    kinds = [event.kind for event in world.core.trace.events_after(n_events)]
    return "".join(str(kinds.count(kind)) for kind in COUNTED)


def five_loops(part_class: type | None = None, rules: frozenset[str] = RULES) -> list[str]:
    """Runs the scenario of an item that is longer than what is lent at once: 48 rows, 8 blocks of 4 rows lent."""
    world = World(
        n_blocks=16,
        block_rows=4,
        n_rows=lambda tid: 48,
        part_class=part_class,
        rules=rules,
        max_blocks_per_round=8,
    )
    world.submit()
    world.tick()
    world.run_encoder()
    world.tick()
    world.run_encoder()
    loops = [loop(world) for _ in range(3)]
    world.run_encoder()
    loops += [loop(world) for _ in range(2)]
    return loops


def resumes(n_rounds: int, n_blocks: int, per_round: int, part_class: type | None = None) -> tuple[World, list[str]]:
    """Carries an item in rounds, with three idle ticks in each."""
    world = World(
        n_blocks=n_blocks,
        block_rows=2,
        n_rows=lambda tid: 2 * per_round * n_rounds,
        part_class=part_class,
        rules=RULES if part_class is None else frozenset(),
        max_blocks_per_round=per_round,
    )
    world.submit()
    world.tick()
    world.run_encoder()
    loops = []
    for _ in range(n_rounds + 1):
        loops += [loop(world) for _ in range(4)]
        world.run_encoder()
    return world, loops


def test_five_loops():
    assert five_loops() == ["1111", "0000", "0000", "1100", "0000"]


def test_five_loops_fail_without_the_guard():
    assert five_loops(UnguardedScheduler, frozenset())[:3] == ["1111", "1111", "1111"]


def test_a_guard_by_block_numbers_passes_the_five_loops_as_it_did_where_it_was_made():
    assert five_loops(TupleGuardedScheduler) == five_loops()


def test_a_guard_by_block_numbers_never_ends_a_third_round():
    world, _ = resumes(3, 2, 2, TupleGuardedScheduler)

    assert world.core.poll(1) is not Poll.SUCCESS


@pytest.mark.parametrize("n_rounds", [2, 3, 5, 17, 64])
def test_n_resumes(n_rounds: int):
    world, loops = resumes(n_rounds, 8, 4)

    busy = ["0011", *["1111"] * (n_rounds - 1), "1100"]
    assert loops == [step for first in busy for step in (first, "0000", "0000", "0000")]
    outcome = world.core.result(1)
    assert outcome is not None
    assert outcome.result is TransferResult.SUCCESS
    world.check_idle()


def test_same_indices_every_round():
    world, _ = resumes(40, 2, 2)

    grants = [event.blocks for event in world.core.trace.events_after(0) if event.kind is TraceKind.GRANT]
    assert grants == [(0, 1)] * 40
    assert world.core.poll(1) is Poll.SUCCESS


def test_a_pool_of_one_row_carries_any_item():
    world = World(n_blocks=1, block_rows=1, n_rows=lambda tid: 50 * tid, max_active=3)
    for _ in range(3):
        world.submit()

    world.run()

    assert set(world.rules.polls.values()) == {Poll.SUCCESS}
