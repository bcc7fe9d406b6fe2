"""An image that is being encoded, those who wait for it, and what its rows become in a prompt."""

import struct

import pytest

from corosrv.base.errors import EncoderUnavailable
from corosrv.contracts.jobs import Rows, Tokens
from corosrv.images.transfer.core import TransferOutcome
from corosrv.images.transfer.messages import RowSegment, TokenSegment, TransferMeta
from corosrv.images.transfer.session import TransferResult
from corosrv.images.vision.task import EncodedImage, ImageTask, read_pieces
from tests.images.vision.encoders import image

WIDTH = 2
ENCODED = EncodedImage((Tokens((1,)),))


@pytest.fixture
def task() -> ImageTask:
    return ImageTask(("", "a"), image(), 10.0)


def test_everybody_who_waits_is_woken_once_at_the_end(task):
    woken = []
    task.join(lambda: woken.append("one"))
    task.join(lambda: woken.append("two"))

    task.end(ENCODED)
    task.end(error=EncoderUnavailable("too late"))

    assert woken == ["one", "two"]
    assert task.is_over
    assert task.value() == ENCODED


def test_who_has_left_is_not_woken_and_may_leave_twice(task):
    woken = []

    def wake() -> None:
        woken.append("one")

    task.join(wake)
    was_awaited = task.is_awaited
    task.leave(wake)
    task.leave(wake)
    task.end(ENCODED)

    assert was_awaited
    assert not task.is_awaited
    assert woken == []


def test_each_who_waits_has_an_error_of_its_own(task):
    was_over, rid = task.is_over, task.rid
    task.end(error=EncoderUnavailable("no encoder", 7))

    errors = []
    for _ in range(2):
        with pytest.raises(EncoderUnavailable, match="no encoder") as failure:
            task.value()
        errors.append(failure.value)

    assert (was_over, rid, task.is_over) == (False, 0, True)
    assert errors[0] is not errors[1]


def pieces(*segments: TokenSegment | RowSegment) -> tuple[Tokens | Rows, ...]:
    """What stands in a prompt for these segments, whose rows have the numbers 0, 1, 2 ..."""
    total = sum(segment.n for segment in segments if isinstance(segment, RowSegment))
    rows = struct.pack(f"<{total * WIDTH}f", *range(total * WIDTH))
    meta = TransferMeta(1, 1, total, WIDTH, segments)
    return read_pieces(TransferOutcome(TransferResult.SUCCESS, "", bytearray(rows), meta), WIDTH).pieces


def numbers(rows: Rows) -> list[float]:
    return list(struct.unpack(f"<{rows.n * rows.width}f", rows.data))


def test_segments_become_pieces_in_their_order_each_with_its_own_rows():
    first, one, second, two = pieces(TokenSegment((7, 8)), RowSegment(2), TokenSegment((9,)), RowSegment(1))

    assert (first, second) == (Tokens((7, 8)), Tokens((9,)))
    assert (numbers(one), numbers(two)) == ([0, 1, 2, 3], [4, 5])
    assert one.is_read_as_tokens


def test_a_segment_of_no_tokens_becomes_nothing():
    (rows,) = pieces(TokenSegment(()), RowSegment(1), TokenSegment(()))

    assert rows.n == 1


def test_rows_keep_how_they_are_read():
    positions = ((0, 1, 2, 3), (4, 5, 6, 7))

    (non_causal,) = pieces(RowSegment(2, is_non_causal=True, n_positions=2))
    (mrope,) = pieces(RowSegment(2, is_mrope=True, n_positions=5, positions=positions))
    (both,) = pieces(RowSegment(2, is_mrope=True, is_non_causal=True, positions=positions))

    assert (non_causal.is_non_causal, non_causal.positions, non_causal.n_positions) == (True, b"", 0)
    assert struct.unpack("<8i", mrope.positions) == tuple(range(8))
    assert (mrope.is_non_causal, mrope.n_positions) == (False, 5)
    assert (both.is_non_causal, both.n_positions) == (True, 2)


def test_positions_of_rows_take_room_as_well():
    image = EncodedImage((Rows.of_data(bytes(32), 4, n_positions=1, positions=bytes(32)), Tokens((2,))))

    assert image.n_bytes == 64
