"""Defines the states of a place in a pool, which one process after the other takes, and their moves."""

from __future__ import annotations

from enum import Enum

from corosrv.base.errors import IllegalTransition


class PlaceState(str, Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # gets no new calls, and ends when those that run have ended
    STOPPING = "stopping"  # its process was told to end
    GONE = "gone"  # it has no process, as somebody wanted
    FAILED = "failed"  # its process could not start, or died


NEXT: dict[PlaceState, frozenset[PlaceState]] = {
    PlaceState.STARTING: frozenset({PlaceState.READY, PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.READY: frozenset({PlaceState.DRAINING, PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.DRAINING: frozenset({PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.STOPPING: frozenset({PlaceState.GONE}),
    PlaceState.GONE: frozenset({PlaceState.STARTING}),
    PlaceState.FAILED: frozenset({PlaceState.STARTING}),
}
LIVE = (PlaceState.STARTING, PlaceState.READY)
# A place in one of these states has a process, which takes of the host what its pool claims.
HOLDING = (PlaceState.STARTING, PlaceState.READY, PlaceState.DRAINING, PlaceState.STOPPING)


def check_move(state: PlaceState, next_state: PlaceState) -> None:
    """Raises IllegalTransition for a move that the table does not have."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a place", state, next_state)
