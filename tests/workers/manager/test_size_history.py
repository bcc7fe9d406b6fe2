"""Sizes that were too small, and when they may be tried again."""

from __future__ import annotations

import pytest

from corosrv.workers.manager.scaling import LONGEST_HOLD, SizeHistory


@pytest.fixture
def history() -> SizeHistory:
    history = SizeHistory()
    history.add_proof(2, loads=[1.6], slots=[1])
    return history


def test_a_size_may_be_tried_again_when_the_load_has_halved(history: SizeHistory):
    assert history.allows(2, [0.8])
    assert not history.allows(2, [0.81])
    assert not history.allows(1, [0.81])
    assert history.allows(3, [9.0])


def test_every_group_has_to_have_less_to_do():
    history = SizeHistory()
    history.add_proof(1, loads=[0.8, 0.4], slots=[1, 1])

    assert history.allows(1, [0.4, 0.2])
    assert not history.allows(1, [0.1, 0.3])


def test_a_size_is_tried_again_for_next_to_nothing_whatever_the_load_was():
    history = SizeHistory()
    history.add_proof(2, loads=[0.0], slots=[4])

    assert history.allows(2, [0.8])
    assert not history.allows(2, [0.9])


def test_each_new_proof_doubles_the_time_before_the_next_try(history: SizeHistory):
    holds = []
    for _ in range(8):
        holds.append(history.hold(2, 60.0))
        history.note_try(2)
        history.add_proof(2, loads=[1.6], slots=[1])

    assert holds == [60, 120, 240, 480, 960, 1920, LONGEST_HOLD, LONGEST_HOLD]
    assert history.hold(3, 60.0) == 60


def test_the_same_proof_counts_once(history: SizeHistory):
    for _ in range(5):
        history.add_proof(2, loads=[1.6], slots=[1])

    assert history.hold(2, 60.0) == 60
