"""The bounds of transfers: how many run, what they may take, and in which order they get it."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Misuse, SettingsError
from corosrv.images.transfer.core import TransferCore
from corosrv.images.transfer.ledger import MAX_ENDED
from corosrv.images.transfer.messages import Geometry, ImagePixels
from corosrv.images.transfer.session import Allocation, BlockAllocator, Poll
from corosrv.images.transfer.stats import MAX_EVENTS, Trace, TraceEvent, TraceKind, TransferLimits
from tests.images.transfer.encoder import PlainPool, meta
from tests.images.transfer.world import World


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_blocks_per_round", 0),
        ("max_active", 0),
        ("max_queued", 0),
        ("staging_budget", 0),
        ("max_rows", 0),
        ("open_timeout", 0.0),
        ("round_timeout", -1.0),
        ("drain_timeout", 0.0),
        ("deadline", 0.0),
    ],
)
def test_a_limit_that_lets_nothing_through_is_refused_by_its_name(name: str, value: float):
    with pytest.raises(SettingsError, match=name):
        TransferLimits(**{name: value})


def test_no_more_transfers_are_open_than_may_be():
    world = World(max_active=2)
    for _ in range(5):
        world.submit()

    world.tick()

    assert [world.core.poll(rid) for rid in world.rids] == [Poll.WAITING] * 2 + [Poll.BOOTSTRAPPING] * 3


def test_the_next_transfer_is_opened_when_one_ends():
    world = World(max_active=1)
    world.submit()
    world.submit()
    world.tick()

    world.cancel(1)
    world.tick()

    assert world.core.poll(2) is Poll.WAITING


def test_memory_is_reserved_for_whole_items_in_order_of_need():
    world = World(n_rows=lambda tid: 6, staging_budget=50, max_active=3)
    for _ in range(3):
        world.submit()
    world.tick()

    for tid in (1, 2, 3):
        world.deliver(meta(1, tid, 6))  # 24 bytes
    world.tick()

    assert world.core.stats().staging_bytes == 48
    world.cancel(1)
    world.tick()
    assert world.core.stats().staging_bytes == 48


def test_a_small_item_does_not_overtake_a_large_one_that_waits_for_memory():
    world = World(n_blocks=8, n_rows={1: 8, 2: 12, 3: 1}.__getitem__, staging_budget=50)
    for _ in range(3):
        world.submit()
    world.tick()

    for tid in (1, 2, 3):
        world.deliver(meta(1, tid, world.n_rows(tid)))
    world.tick()

    assert [world.core.poll(rid) for rid in world.rids] == [Poll.TRANSFERRING, Poll.WAITING, Poll.WAITING]


def test_results_that_nobody_asks_for_are_dropped_oldest_first():
    geometry = Geometry(1, 1, 4, 4096)
    core = TransferCore(geometry, TransferLimits(max_queued=MAX_ENDED + 1), PlainPool(geometry))
    for _ in range(MAX_ENDED + 1):
        core.cancel(core.submit(ImagePixels(1, 1)))

    with pytest.raises(Misuse):
        core.result(1)
    assert core.result(2) is not None


def test_a_trace_keeps_the_last_steps():
    trace = Trace()
    for rid in range(MAX_EVENTS + 5):
        trace.add(TraceEvent(TraceKind.OPEN, rid))

    assert len(trace.events) == MAX_EVENTS
    assert trace.n_events == MAX_EVENTS + 5
    assert [event.rid for event in trace.events_after(MAX_EVENTS + 3)] == [MAX_EVENTS + 3, MAX_EVENTS + 4]


# Blocks.


def test_as_many_blocks_are_lent_as_are_free():
    blocks = BlockAllocator(4)
    blocks.allocate(1, 1, 3)

    assert blocks.allocate(2, 1, 3).blocks == (3,)
    with pytest.raises(Misuse):
        blocks.allocate(3, 1, 1)


def test_a_generation_is_lent_blocks_once():
    blocks = BlockAllocator(4)
    blocks.allocate(1, 1, 1)

    with pytest.raises(Misuse):
        blocks.allocate(1, 1, 1)


@pytest.mark.parametrize(
    "wrong",
    [Allocation(1, 1, (0,)), Allocation(1, 2, (0, 1)), Allocation(2, 1, (0, 1)), Allocation(1, 1, (1, 0))],
    ids=["a part", "another generation", "another owner", "another order"],
)
def test_only_a_whole_allocation_is_freed_by_its_owner(wrong: Allocation):
    strict, lenient = BlockAllocator(4, is_strict=True), BlockAllocator(4, is_strict=False)
    for blocks in (strict, lenient):
        blocks.allocate(1, 1, 2)

    with pytest.raises(Misuse):
        strict.free(wrong)
    assert not lenient.free(wrong)
    assert (lenient.n_refused, lenient.n_free, lenient.n_in_use) == (1, 2, 2)


def test_an_allocation_is_freed_once():
    blocks = BlockAllocator(4, is_strict=False)
    allocation = blocks.allocate(1, 1, 2)

    assert blocks.free(allocation)
    assert not blocks.free(allocation)
    assert (blocks.n_refused, blocks.n_free) == (1, 4)


def test_quarantined_blocks_are_neither_free_nor_in_use():
    blocks = BlockAllocator(4)
    allocation = blocks.allocate(1, 1, 3)

    blocks.quarantine(allocation)
    assert (blocks.n_free, blocks.n_in_use, blocks.n_quarantined) == (1, 0, 3)
    blocks.free(allocation)

    assert (blocks.n_free, blocks.n_in_use, blocks.n_quarantined) == (4, 0, 0)
