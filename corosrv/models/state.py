"""The states of a model in a pool, and the moves between them."""

from __future__ import annotations

from enum import Enum

from corosrv.base.errors import IllegalTransition


class ModelState(str, Enum):
    UNLOADED = "unloaded"
    DOWNLOADING = "downloading"  # from a hub; it is loaded afterwards, if it is still wanted
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"  # could not be loaded; the next request after a while tries again


NEXT: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.DOWNLOADING}),
    ModelState.DOWNLOADING: frozenset({ModelState.UNLOADED, ModelState.FAILED}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.UNLOADING}),
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNLOADED}),
    ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.DOWNLOADING}),
}
# A model in one of these states has memory, or is about to get some.
HOLDING = frozenset({ModelState.LOADING, ModelState.READY, ModelState.UNLOADING})


def check_move(state: ModelState, next_state: ModelState) -> None:
    """Raises IllegalTransition for a move that the table does not have."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a model", state, next_state)
