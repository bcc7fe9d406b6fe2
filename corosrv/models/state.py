"""Where a model of a pool stands, and how it may move on."""

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
# A model in one of these has memory, or is about to.
HOLDING = frozenset({ModelState.LOADING, ModelState.READY, ModelState.UNLOADING})


def check_move(now: ModelState, then: ModelState) -> None:
    """Raises IllegalTransition unless the table has it."""
    if then not in NEXT[now]:
        raise IllegalTransition("a model", now, then)
