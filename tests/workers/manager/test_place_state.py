"""The states of a place, and every move between them."""

from __future__ import annotations

import itertools

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.workers.manager.plan import PlaceState, check_move

MOVES = {
    "starting": {"ready", "stopping", "failed"},
    "ready": {"draining", "stopping", "failed"},
    "draining": {"stopping", "failed"},
    "stopping": {"gone"},
    "gone": {"starting"},
    "failed": {"starting"},
}


@pytest.mark.parametrize(("state", "next_state"), list(itertools.product(PlaceState, PlaceState)))
def test_a_place_moves_as_its_table_says(state: PlaceState, next_state: PlaceState):
    if next_state.value in MOVES[state.value]:
        check_move(state, next_state)
    else:
        with pytest.raises(IllegalTransition):
            check_move(state, next_state)
