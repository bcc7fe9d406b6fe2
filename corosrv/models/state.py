"""Where a model of a pool stands, and how it may move on."""

from __future__ import annotations

from enum import Enum


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


class IllegalMove(AssertionError):
    """A bug: a model was to go where the table does not let it."""


def check_move(now: ModelState, then: ModelState) -> None:
    """Raises IllegalMove unless the table has it."""
    if then not in NEXT[now]:
        raise IllegalMove(f"a model cannot go from {now.value} to {then.value}")
