"""The table of a model's states, walked whole."""

import itertools

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.contracts.settings import ModelSettings
from corosrv.models.plan import NEXT, ModelState, check_move
from corosrv.models.served import ServedModel

ALLOWED = [
    ("unloaded", "loading"),
    ("unloaded", "downloading"),
    ("downloading", "unloaded"),
    ("downloading", "failed"),
    ("failed", "downloading"),
    ("loading", "ready"),
    ("loading", "failed"),
    ("loading", "unloading"),
    ("ready", "unloading"),
    ("unloading", "unloaded"),
    ("failed", "loading"),
]
REFUSED = [pair for pair in itertools.product([state.value for state in ModelState], repeat=2) if pair not in ALLOWED]


def test_the_table_has_a_row_for_every_state():
    assert set(NEXT) == set(ModelState)


@pytest.mark.parametrize(("now", "then"), ALLOWED)
def test_an_allowed_move_is_made(now, then):
    model = ServedModel(ModelSettings(model="synthetic:"), lambda: None)
    model.state = ModelState(now)

    model._enter(ModelState(then))

    assert model.state.value == then


@pytest.mark.parametrize(("now", "then"), REFUSED)
def test_any_other_move_is_refused_and_changes_nothing(now, then):
    model = ServedModel(ModelSettings(model="synthetic:"), lambda: None)
    model.state = ModelState(now)

    with pytest.raises(IllegalTransition, match=f"from {now} to {then}"):
        model._enter(ModelState(then))

    assert model.state.value == now


def test_a_move_is_checked_without_a_model_too():
    with pytest.raises(IllegalTransition):
        check_move(ModelState.READY, ModelState.FAILED)
