"""The encoder's decisions, message by message."""

import pytest

from corosrv.images.encoder.encoding import Encoding, EncodingFailed
from corosrv.images.encoder.side import MAX_LIVE, NEXT, Encode, EncoderSide, EncodeState, Reply, Write
from corosrv.images.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    Geometry,
    GrantBlocks,
    ImagePixels,
    OpenTransfer,
    RowSegment,
    TokenSegment,
    TransferAborted,
    TransferMeta,
)

EPOCH, N_EMBD, BLOCK_ROWS = 3, 2, 4
GEOMETRY = Geometry(n_blocks=8, block_rows=BLOCK_ROWS, row_bytes=4 * N_EMBD, stride=4096)


def encoding(n_rows: int = 10, n_embd: int = N_EMBD) -> Encoding:
    segments = (TokenSegment((7,)), RowSegment(n_rows - 3), TokenSegment((8,)), RowSegment(3))
    return Encoding(segments, memoryview(bytes(4 * n_embd * n_rows)), n_embd)


def open_transfer(tid: int = 1, epoch: int = EPOCH) -> OpenTransfer:
    return OpenTransfer(epoch, tid, ImagePixels(56, 56))


def grant(gen: int = 1, offset: int = 0, blocks: tuple[int, ...] = (0,), capacity: int | None = None, tid: int = 1):
    return GrantBlocks(EPOCH, tid, gen, offset, blocks, len(blocks) * BLOCK_ROWS if capacity is None else capacity)


@pytest.fixture
def side() -> EncoderSide:
    return EncoderSide(EPOCH, GEOMETRY, N_EMBD)


@pytest.fixture
def holding(side) -> EncoderSide:
    """Holds the ten rows of transfer 1."""
    side.receive(open_transfer())
    side.encoded(1, encoding())
    return side


def writes(actions) -> list[Write]:
    return [action for action in actions if isinstance(action, Write)]


def replies(actions) -> list:
    return [action.message for action in actions if isinstance(action, Reply)]


def failure(actions) -> str:
    (message,) = replies(actions)
    assert isinstance(message, EncodeFailed)
    return message.code


def test_an_open_transfer_is_encoded_once(side):
    first, again = side.receive(open_transfer()), side.receive(open_transfer())

    assert (first, again) == ([Encode(open_transfer())], [])


def test_what_was_encoded_is_described_with_the_sum_of_its_rows(side):
    side.receive(open_transfer())

    actions = side.encoded(1, encoding())

    assert actions == [Reply(TransferMeta(EPOCH, 1, 10, N_EMBD, encoding().segments))]


def test_each_round_is_written_before_it_is_reported(holding):
    rounds = [holding.receive(grant(1, 0, (0, 5))), holding.receive(grant(2, 8, (0, 5)))]

    assert [[type(action) for action in actions] for actions in rounds] == [[Write, Reply], [Write, Reply]]
    assert [replies(actions)[0] for actions in rounds] == [
        BlocksFilled(EPOCH, 1, 1, 0, 8, 10),
        BlocksFilled(EPOCH, 1, 2, 8, 2, 10),
    ]
    assert [writes(actions)[0].n for actions in rounds] == [8, 2]


def test_a_grant_that_comes_twice_is_written_once_and_reported_twice(holding):
    first, again = holding.receive(grant()), holding.receive(grant())

    assert again == [Reply(replies(first)[0])]
    assert holding.ignored == {"duplicate": 1}


def test_an_older_grant_writes_and_reports_nothing(holding):
    holding.receive(grant(1))
    holding.receive(grant(2, 4))

    assert holding.receive(grant(1)) == []


def test_a_transfer_that_is_closed_ends_without_an_answer(holding):
    assert holding.receive(CloseTransfer(EPOCH, 1)) == []
    assert holding.n_live == 0


def test_somebody_waits_for_a_transfer_until_it_ends(side):
    side.receive(open_transfer())
    was_live = side.is_live(1)

    side.receive(CancelTransfer(EPOCH, 1))

    assert was_live
    assert not side.is_live(1)


def test_a_transfer_that_is_being_encoded_holds_no_rows(holding):
    holding.receive(open_transfer(2))

    assert (holding.n_live, holding.n_rows_held) == (2, 10)


def test_the_last_row_may_come_alone(side):
    side.receive(open_transfer())
    side.encoded(1, encoding(9))
    side.receive(grant(1, 0, (0, 1)))

    assert replies(side.receive(grant(2, 8, (2,)))) == [BlocksFilled(EPOCH, 1, 2, 8, 1, 9)]


def test_a_cancelled_transfer_is_aborted_at_once_and_writes_nothing_more(holding):
    cancelled = holding.receive(CancelTransfer(EPOCH, 1))

    assert cancelled == [Reply(TransferAborted(EPOCH, 1))]
    assert holding.receive(grant()) == []
    assert holding.n_rows_held == 0


def test_an_encode_that_ends_after_its_cancel_leaves_nothing(side):
    side.receive(open_transfer())
    cancelled = side.receive(CancelTransfer(EPOCH, 1))

    ended = side.encoded(1, encoding())

    assert (cancelled, ended) == ([Reply(TransferAborted(EPOCH, 1))], [])
    assert (side.n_live, side.n_rows_held) == (0, 0)


@pytest.mark.parametrize("message", [open_transfer(), grant(), CancelTransfer(EPOCH, 1), CloseTransfer(EPOCH, 1)])
@pytest.mark.parametrize("end", [CancelTransfer(EPOCH, 1), CloseTransfer(EPOCH, 1)])
def test_nothing_brings_back_a_transfer_that_is_gone(holding, end, message):
    holding.receive(end)

    assert holding.receive(message) == []
    assert holding.n_live == 0


def test_messages_of_another_epoch_do_nothing(side):
    assert side.receive(open_transfer(epoch=EPOCH - 1)) == []
    assert side.ignored == {"epoch": 1}


def test_an_id_below_the_highest_is_gone_though_it_was_never_opened(side):
    side.receive(open_transfer(5))

    assert side.receive(open_transfer(4)) == []


def test_no_rows_are_held_once_all_transfers_have_ended(side):
    for tid in range(1, 21):
        side.receive(open_transfer(tid))
        side.encoded(tid, encoding())
        side.receive(CloseTransfer(EPOCH, tid) if tid % 2 else CancelTransfer(EPOCH, tid))

    assert (side.n_live, side.n_rows_held) == (0, 0)


def test_a_failed_encode_is_reported_with_its_words(side):
    side.receive(open_transfer())

    actions = side.failed(1, EncodingFailed("bad_image", "it has no pixels"))

    assert actions == [Reply(EncodeFailed(EPOCH, 1, "bad_image", "it has no pixels"))]
    assert side.n_live == 0


def test_a_failure_of_a_transfer_that_was_cancelled_is_not_reported(side):
    side.receive(open_transfer())
    side.receive(CancelTransfer(EPOCH, 1))

    assert side.failed(1, EncodingFailed("bad_image", "it has no pixels")) == []
    assert side.ignored == {"unknown": 1}


def test_rows_of_another_width_are_refused(side):
    side.receive(open_transfer())

    assert failure(side.encoded(1, encoding(n_embd=3))) == "width"


@pytest.mark.parametrize(
    "wrong",
    [
        grant(gen=2),
        grant(offset=1),
        grant(blocks=()),
        grant(blocks=(0, 0)),
        grant(blocks=(8,)),
        grant(blocks=(-1,)),
        grant(capacity=5),
    ],
    ids=["generation", "offset", "no blocks", "a block twice", "beyond the pool", "below the pool", "capacity"],
)
def test_a_wrong_grant_ends_its_transfer_without_a_write(holding, wrong):
    actions = holding.receive(wrong)

    assert (writes(actions), failure(actions)) == ([], "protocol")
    assert holding.n_live == 0


def test_a_grant_before_the_rows_are_described_ends_the_transfer_without_a_write(side):
    side.receive(open_transfer())

    granted, encoded = side.receive(grant()), side.encoded(1, encoding())

    assert (writes(granted), failure(granted)) == ([], "protocol")
    assert (encoded, side.n_live) == ([], 0)


def test_blocks_for_rows_that_do_not_exist_end_the_transfer(holding):
    holding.receive(grant(1, 0, (0, 1, 2)))

    assert failure(holding.receive(grant(2, 10))) == "protocol"


def test_a_transfer_over_the_bound_is_refused(side):
    for tid in range(1, MAX_LIVE + 1):
        side.receive(open_transfer(tid))

    assert failure(side.receive(open_transfer(MAX_LIVE + 1))) == "busy"
    assert side.n_live == MAX_LIVE


def test_a_transfer_that_holds_rows_is_not_encoded_again(holding):
    with pytest.raises(Exception, match="cannot go from holding to holding"):
        holding.encoded(1, encoding())


def test_only_encoding_leads_to_holding_and_nothing_out_of_gone():
    assert [state for state, after in NEXT.items() if EncodeState.HOLDING in after] == [EncodeState.ENCODING]
    assert NEXT[EncodeState.GONE] == frozenset()
