"""The states of a model in a pool, and the moves between them."""

from __future__ import annotations

from enum import Enum

from corosrv.errors import IllegalTransition


class ModelState(str, Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"  # could not be loaded; the next request after a while tries again


NEXT: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.UNLOADING}),
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNLOADED}),
    ModelState.FAILED: frozenset({ModelState.LOADING}),
}
# A model in one of these states has memory, or is about to get some.
HOLDING = frozenset({ModelState.LOADING, ModelState.READY, ModelState.UNLOADING})


def check_move(state: ModelState, next_state: ModelState) -> None:
    """Raises IllegalTransition for a move that the table does not have."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a model", state, next_state)
