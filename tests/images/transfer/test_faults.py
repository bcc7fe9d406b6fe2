"""Tests what becomes of a transfer, its blocks and the encoder when something goes wrong, one fault at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from corosrv.base.errors import EncoderBusy, Misuse
from corosrv.images.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    EncodeFailed,
    GrantBlocks,
    ImagePixels,
    OpenTransfer,
    RowSegment,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.images.transfer.session import Poll, TransferResult
from corosrv.images.transfer.stats import IgnoredReason
from tests.images.transfer.encoder import NAN, meta
from tests.images.transfer.rules import RULES
from tests.images.transfer.world import World

N_ROWS = 12  # three rounds of two blocks of two rows


@dataclass
class Fate:
    """Holds what became of a transfer: for its client, in the pool, and at the encoder."""

    result: TransferResult | None
    n_in_use: int
    n_quarantined: int
    messages: list[type]


def make_world(**options) -> World:
    options = {
        "n_blocks": 4,
        "n_rows": lambda tid: N_ROWS,
        "max_blocks_per_round": 2,
        "rules": RULES - {"T2"},
        **options,
    }
    return World(**options)


def fate(world: World, rid: int = 1) -> Fate:
    """Looks at a transfer, and at the messages that are on their way to the encoder."""
    world.send()
    messages, world.to_encoder[:] = [type(message) for message in world.to_encoder], []
    outcome, stats = world.core.result(rid), world.core.stats()
    return Fate(outcome.result if outcome else None, stats.n_in_use, stats.n_quarantined, messages)


def ignored(world: World, reason: IgnoredReason) -> int:
    return world.core.stats().ignored.get(reason, 0)


def opened(world: World) -> World:
    """Submits an item and has it opened; the encoder has not read that."""
    world.submit()
    world.tick()
    world.send()
    world.to_encoder.clear()
    world.encoder.receive(OpenTransfer(world.epoch, 1, ImagePixels(1, 1)))
    return world


def filling(world: World) -> World:
    """Has the encoder encode the item, and lends it blocks that it has not written."""
    opened(world)
    for message in world.encoder.encode(1):
        world.deliver(message)
    world.tick()
    world.send()
    for message in world.to_encoder:
        world.encoder.receive(message)
    world.to_encoder.clear()
    return world


def ready(world: World) -> World:
    """Has the encoder write the rows of the first grant; they were not copied."""
    filling(world)
    for message in world.encoder.write():
        world.deliver(message)
    return world


# Cancellation.


def test_blocks_of_a_transfer_cancelled_while_written_stay_lent_until_the_encoder_answers():
    world = filling(make_world())

    world.cancel(1)

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 2, [CancelTransfer])
    world.deliver(TransferAborted(1, 1))
    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 0, [])
    world.check_idle()


def test_a_report_that_crosses_the_cancellation_frees_the_blocks_and_the_answer_is_late():
    world = filling(make_world())

    world.cancel(1)
    world.deliver(world.encoder.write()[0])

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 0, [CancelTransfer])
    world.deliver(TransferAborted(1, 1))
    assert ignored(world, IgnoredReason.LATE) == 1
    world.check_idle()


def test_a_report_of_an_earlier_round_does_not_free_the_blocks_of_a_cancelled_one():
    world = ready(make_world())
    world.tick()
    fate(world)

    world.cancel(1)
    world.deliver(BlocksFilled(1, 1, 1, 0, 4, N_ROWS))

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 2, [CancelTransfer])
    assert ignored(world, IgnoredReason.LATE) == 1


def test_a_transfer_cancelled_while_it_is_encoded_holds_nothing():
    world = opened(make_world())

    world.cancel(1)

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 0, [CancelTransfer])


def test_a_transfer_cancelled_while_it_waits_for_blocks_holds_nothing_and_gets_none():
    world = make_world(n_blocks=2)
    world.submit()
    world.submit()
    world.tick()
    world.deliver(meta(1, 1, N_ROWS))
    world.deliver(meta(1, 2, N_ROWS))
    world.tick()
    fate(world)

    world.cancel(2)
    world.tick()

    assert fate(world, 2) == Fate(TransferResult.CANCELLED, 2, 0, [CancelTransfer])


def test_the_encoder_hears_nothing_of_a_transfer_cancelled_in_the_queue():
    world = make_world(max_active=1)
    world.submit()
    world.submit()
    world.tick()
    fate(world)

    world.cancel(2)
    world.tick()

    assert fate(world, 2) == Fate(TransferResult.CANCELLED, 0, 0, [])


def test_blocks_of_a_transfer_cancelled_after_it_was_written_are_free_at_once():
    world = ready(make_world())

    world.cancel(1)

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 0, [CancelTransfer])
    world.check_idle()


def test_a_second_cancellation_does_nothing():
    world = filling(make_world())

    world.cancel(1)
    world.cancel(1)

    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 2, [CancelTransfer])
    assert world.core.stats().finished == {TransferResult.CANCELLED: 1}


def test_what_has_succeeded_cannot_be_cancelled():
    world = make_world()
    world.submit()
    world.run()

    world.cancel(1)

    assert fate(world) == Fate(TransferResult.SUCCESS, 0, 0, [])
    assert world.core.poll(1) is Poll.SUCCESS


def test_a_transfer_that_was_forgotten_while_written_is_freed_and_not_known():
    world = filling(make_world())
    world.rids.clear()

    world.core.forget(1)
    world.deliver(TransferAborted(1, 1))

    with pytest.raises(Misuse):
        world.core.poll(1)
    world.check_idle()


# The end of an encoder process.


def test_a_crash_in_the_middle_of_a_round_frees_its_blocks():
    world = filling(make_world())

    world.crash()

    assert fate(world) == Fate(TransferResult.LOST, 0, 0, [])
    world.check_idle()


@pytest.mark.parametrize("reach", [opened, ready])
def test_a_crash_ends_a_transfer_wherever_it_is(reach):
    world = reach(make_world())

    world.crash()

    assert fate(world) == Fate(TransferResult.LOST, 0, 0, [])


def test_a_crash_frees_what_a_cancelled_transfer_was_lent():
    world = filling(make_world())
    world.cancel(1)

    world.crash()

    assert fate(world).result is TransferResult.CANCELLED
    world.check_idle()


def test_what_was_to_be_sent_to_a_crashed_encoder_is_not_sent_to_the_next():
    world = make_world()
    world.submit()
    world.core.tick()
    assert [type(message) for message in world.core.outbox] == [OpenTransfer]

    world.crash()

    assert world.core.outbox == []
    world.start()
    world.tick()
    assert fate(world) == Fate(TransferResult.LOST, 0, 0, [])


def test_messages_of_a_crashed_encoder_do_nothing_after_a_restart():
    world = filling(make_world())
    stale = [meta(1, 2, N_ROWS), *world.encoder.write(), TransferAborted(1, 1), EncodeFailed(1, 2, "bad", "")]
    world.crash()
    world.start()
    rid = world.submit()
    world.tick()

    for message in stale:
        world.deliver(message)

    assert ignored(world, IgnoredReason.EPOCH) == len(stale)
    assert world.core.poll(rid) is Poll.WAITING


def test_queued_transfers_survive_a_crash_and_get_ids_that_were_never_used():
    world = make_world(max_active=1)
    for _ in range(3):
        world.submit()
    world.tick()

    world.crash()
    world.start()
    world.run()

    results = [world.core.result(rid).result for rid in world.rids]
    assert results == [TransferResult.LOST, TransferResult.SUCCESS, TransferResult.SUCCESS]
    assert [world.rules.tids[rid] for rid in world.rids] == [1, 2, 3]


def test_without_an_encoder_transfers_wait_in_the_queue_until_their_time_is_over():
    world = make_world(deadline=20.0, max_queued=2)
    world.crash()
    world.submit()
    world.submit()

    with pytest.raises(EncoderBusy):
        world.core.submit(ImagePixels(1, 1))
    world.pass_time(19.9)
    world.tick()
    assert world.core.poll(1) is Poll.BOOTSTRAPPING
    world.pass_time(0.1)
    world.tick()

    assert fate(world) == Fate(TransferResult.TIMEOUT, 0, 0, [])
    assert world.core.next_deadline() == float("inf")


@pytest.mark.parametrize("epoch", [1, 0])
def test_an_encoder_cannot_follow_one_that_was_not_before_it(epoch: int):
    world = make_world()
    world.crash()

    with pytest.raises(Misuse):
        world.core.encoder_up(epoch)


def test_an_encoder_cannot_follow_one_that_was_not_reaped():
    world = make_world()

    with pytest.raises(Misuse):
        world.core.encoder_up(2)


# Time.


def tick_at(world: World, now: float) -> None:
    world.pass_time(now - world.now)
    world.tick()


def test_an_encode_that_takes_too_long_ends_its_transfer():
    world = opened(make_world())

    tick_at(world, 29.9)
    assert fate(world) == Fate(None, 0, 0, [])
    tick_at(world, 30.0)

    assert fate(world) == Fate(TransferResult.TIMEOUT, 0, 0, [CancelTransfer])


def test_a_round_that_takes_too_long_ends_its_transfer():
    world = filling(make_world())

    tick_at(world, 9.9)
    assert fate(world) == Fate(None, 2, 0, [])
    tick_at(world, 10.0)

    assert fate(world) == Fate(TransferResult.TIMEOUT, 0, 2, [CancelTransfer])


def test_each_round_has_its_own_time():
    world = filling(make_world())
    world.pass_time(9.9)
    world.deliver(world.encoder.write()[0])
    world.tick()

    tick_at(world, 19.8)
    assert fate(world).result is None
    tick_at(world, 19.9)

    assert fate(world).result is TransferResult.TIMEOUT


def test_an_encoder_that_does_not_answer_a_cancellation_is_killed_once_and_its_blocks_wait_for_its_end():
    world = filling(make_world())
    world.cancel(1)

    tick_at(world, 4.9)
    assert world.core.kill_wanted is None
    tick_at(world, 5.0)
    tick_at(world, 50.0)

    assert world.core.kill_wanted == 1
    assert world.core.stats().n_kills == 1
    assert fate(world) == Fate(TransferResult.CANCELLED, 0, 2, [CancelTransfer])
    world.crash()
    assert world.core.kill_wanted is None
    world.check_idle()


@pytest.mark.parametrize(
    ("reach", "n_quarantined"), [(opened, 0), (filling, 2)], ids=["while it is encoded", "while it is written"]
)
def test_a_transfer_ends_when_its_own_time_is_over(reach, n_quarantined: int):
    world = reach(make_world(deadline=7.0))

    tick_at(world, 6.9)
    assert fate(world).result is None
    tick_at(world, 7.0)

    assert fate(world) == Fate(TransferResult.TIMEOUT, 0, n_quarantined, [CancelTransfer])


def test_a_transfer_that_waits_for_blocks_ends_when_its_own_time_is_over():
    world = make_world(n_blocks=2, deadline=60.0, round_timeout=100.0)
    world.submit()
    world.submit()
    world.tick()
    world.deliver(meta(1, 1, N_ROWS))
    world.deliver(meta(1, 2, N_ROWS))
    world.tick()
    fate(world)

    tick_at(world, 59.9)
    assert fate(world, 2).result is None
    tick_at(world, 60.0)

    assert fate(world, 2).result is TransferResult.TIMEOUT


def test_the_time_of_one_transfer_can_be_set():
    world = make_world()
    rid = world.core.submit(ImagePixels(1, 1), deadline=1.5)

    assert world.core.next_deadline() == 1.5
    tick_at(world, 1.5)

    assert world.core.result(rid).result is TransferResult.TIMEOUT


def test_the_next_deadline_is_that_of_the_step_at_hand():
    world = make_world()
    assert world.core.next_deadline() == float("inf")

    assert opened(world).core.next_deadline() == 30.0
    world.deliver(world.encoder.encode(1)[0])
    world.tick()
    assert world.core.next_deadline() == 10.0
    world.cancel(1)
    assert world.core.next_deadline() == 5.0
    tick_at(world, 5.0)
    assert world.core.next_deadline() == float("inf")


def test_time_does_not_go_backwards():
    world = opened(make_world())
    world.pass_time(29.0)
    world.core.set_time(3.0)

    tick_at(world, 30.0)

    assert fate(world).result is TransferResult.TIMEOUT


# What the encoder may not say or write.


def row_segments(*counts: int) -> tuple[RowSegment, ...]:
    return tuple(RowSegment(n) for n in counts)


BAD_DESCRIPTIONS = {
    "no rows": meta(1, 1, 0),
    "fewer than no rows": meta(1, 1, -1),
    "too many rows": meta(1, 1, 4097),
    "another width": TransferMeta(1, 1, N_ROWS, 2, row_segments(N_ROWS)),
    "segments of fewer rows": TransferMeta(1, 1, N_ROWS, 1, row_segments(5, 6)),
    "an empty segment": TransferMeta(1, 1, N_ROWS, 1, row_segments(N_ROWS, 0)),
    "a segment of fewer than no rows": TransferMeta(1, 1, N_ROWS, 1, row_segments(N_ROWS + 1, -1)),
    "too few positions": TransferMeta(1, 1, N_ROWS, 1, (RowSegment(N_ROWS, is_mrope=True, positions=((0,) * 4,)),)),
    "positions without need": TransferMeta(1, 1, N_ROWS, 1, (RowSegment(N_ROWS, positions=((0,) * 4,) * N_ROWS),)),
    "a move back": TransferMeta(1, 1, N_ROWS, 1, (RowSegment(N_ROWS, n_positions=-1),)),
}


@pytest.mark.parametrize("message", BAD_DESCRIPTIONS.values(), ids=BAD_DESCRIPTIONS.keys())
def test_a_wrong_description_ends_its_transfer(message: ToLanguage):
    world = opened(make_world())

    world.deliver(message)

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 0, [CancelTransfer])


def test_positions_for_each_row_are_no_violation():
    world = opened(make_world())
    segment = RowSegment(N_ROWS, is_mrope=True, n_positions=4, positions=((0, 1, 2, 0),) * N_ROWS)

    world.deliver(TransferMeta(1, 1, N_ROWS, 1, (segment,)))

    assert world.core.result(1) is None


BAD_REPORTS = {
    "a generation that was not granted": BlocksFilled(1, 1, 2, 0, 4, N_ROWS),
    "another offset": BlocksFilled(1, 1, 1, 4, 4, N_ROWS),
    "too few rows": BlocksFilled(1, 1, 1, 0, 3, N_ROWS),
    "more rows than fit": BlocksFilled(1, 1, 1, 0, 5, N_ROWS),
    "another total": BlocksFilled(1, 1, 1, 0, 4, N_ROWS + 1),
    "no total": BlocksFilled(1, 1, 1, 0, 4, 0),
    "another description": meta(1, 1, N_ROWS + 1),
    "other segments": TransferMeta(1, 1, N_ROWS, 1, row_segments(6, 6)),
}


@pytest.mark.parametrize("message", BAD_REPORTS.values(), ids=BAD_REPORTS.keys())
def test_a_wrong_report_ends_its_transfer_and_keeps_its_blocks_until_the_encoder_is_quiet(message: ToLanguage):
    world = filling(make_world())

    world.deliver(message)

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 2, [CancelTransfer])
    world.deliver(TransferAborted(1, 1))
    world.check_idle()


@pytest.mark.parametrize("gen", [0, 1, 2])
def test_a_report_before_the_description_ends_its_transfer(gen: int):
    world = opened(make_world())

    world.deliver(BlocksFilled(1, 1, gen, 0, 4, N_ROWS))

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 0, [CancelTransfer])


@pytest.mark.parametrize("reach", [opened, filling, ready])
def test_an_end_that_nobody_asked_for_is_a_violation_and_frees_the_blocks(reach):
    world = reach(make_world())

    world.deliver(TransferAborted(1, 1))

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 0, [CancelTransfer])
    world.check_idle()


def test_rows_under_another_header_are_not_taken():
    world = ready(make_world())
    world.pool.headers[1] = (1, 1, 2, 2, 2)

    world.tick()

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 0, [CancelTransfer])
    assert world.core.result(1).rows is None


def test_a_number_that_is_not_finite_ends_its_transfer_and_is_counted():
    world = ready(make_world())
    world.pool.rows[1, 1] = NAN

    world.tick()

    assert fate(world) == Fate(TransferResult.PROTOCOL, 0, 0, [CancelTransfer])
    assert world.core.stats().n_not_finite == 1


def test_a_violation_does_not_disturb_other_transfers():
    world = filling(make_world())
    rid = world.submit()

    world.deliver(BlocksFilled(1, 1, 9, 0, 4, N_ROWS))
    world.run()

    assert world.core.result(1).result is TransferResult.PROTOCOL
    assert world.core.result(rid).result is TransferResult.SUCCESS


# What the encoder may say.


@pytest.mark.parametrize("reach", [opened, filling, ready])
def test_a_failure_of_the_encoder_ends_its_transfer_with_its_words(reach):
    world = reach(make_world())

    world.deliver(EncodeFailed(1, 1, "too_small", "the image is too small"))

    assert fate(world) == Fate(TransferResult.ENCODER, 0, 0, [])
    assert "the image is too small" in world.core.result(1).reason
    world.check_idle()


def test_an_item_that_memory_cannot_hold_is_refused_when_its_length_is_known():
    world = opened(make_world(staging_budget=4 * N_ROWS - 1))

    world.deliver(meta(1, 1, N_ROWS))

    assert fate(world) == Fate(TransferResult.TOO_LARGE, 0, 0, [CancelTransfer])


def test_repeated_late_and_unknown_messages_are_counted_and_dropped():
    world = ready(make_world())
    report = BlocksFilled(1, 1, 1, 0, 4, N_ROWS)

    world.deliver(meta(1, 1, N_ROWS))
    world.deliver(report)
    world.tick()
    world.deliver(report)
    world.deliver(meta(1, 99, N_ROWS))

    counted = {IgnoredReason.DUPLICATE: 2, IgnoredReason.LATE: 1, IgnoredReason.UNKNOWN: 1}
    assert world.core.stats().ignored == counted
    assert fate(world) == Fate(None, 2, 0, [GrantBlocks])
