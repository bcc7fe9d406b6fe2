"""One transfer's states: where it may go from each, and what identifies a round."""

from __future__ import annotations

import pytest

from corosrv.base.errors import IllegalTransition, Misuse
from corosrv.images.transfer.messages import BlocksFilled, ImagePixels
from corosrv.images.transfer.session import ACTIVE, ENDED_FOR_CLIENT, MOVES, Allocation, TransferSession, TransferState


def make_session() -> TransferSession:
    return TransferSession(1, ImagePixels(1, 1), now=0.0, ends_at=120.0)


def make_filled_session() -> TransferSession:
    session = make_session()
    session.grant(Allocation(1, 1, (0,)), capacity=2)
    session.fill(BlocksFilled(1, 1, 1, 0, 2, 4))
    return session


@pytest.mark.parametrize("old", TransferState)
@pytest.mark.parametrize("new", TransferState)
def test_a_transfer_goes_where_the_table_says_and_nowhere_else(old: TransferState, new: TransferState):
    session = make_session()
    session.state = old

    if new in MOVES[old]:
        session.enter(new, 1.0)
        assert (session.state, session.changed_at) == (new, 1.0)
    else:
        with pytest.raises(IllegalTransition):
            session.enter(new, 1.0)
        assert (session.state, session.changed_at) == (old, 0.0)


def test_every_state_can_be_reached_and_only_ends_are_final():
    assert set().union(*MOVES.values()) == set(TransferState) - {TransferState.QUEUED}
    assert {state for state, moves in MOVES.items() if not moves} == {TransferState.DONE, TransferState.FAILED}
    assert not ACTIVE & ENDED_FOR_CLIENT


def test_a_generation_is_copied_once_however_often_it_is_asked():
    session = make_session()
    assert not session.is_to_be_copied
    session.grant(Allocation(1, 1, (0,)), capacity=2)
    assert not session.is_to_be_copied

    session.fill(BlocksFilled(1, 1, 1, 0, 2, 4))
    assert session.is_to_be_copied
    session.end_generation()

    assert not session.is_to_be_copied
    assert session.received == 2


def test_no_blocks_are_lent_before_those_of_the_last_generation_were_copied():
    session = make_filled_session()

    with pytest.raises(Misuse):
        session.grant(Allocation(1, 2, (1,)), capacity=2)


@pytest.mark.parametrize("gen", [1, 3])
def test_no_generation_is_repeated_or_left_out(gen: int):
    session = make_filled_session()
    session.end_generation()

    with pytest.raises(Misuse):
        session.grant(Allocation(1, gen, (1,)), capacity=2)


def test_the_encoder_is_quiet_once_it_has_filled_what_it_was_lent():
    session = make_session()
    assert session.is_quiet
    session.grant(Allocation(1, 1, (0,)), capacity=2)
    assert not session.is_quiet

    session.fill(BlocksFilled(1, 1, 1, 0, 2, 4))

    assert session.is_quiet
