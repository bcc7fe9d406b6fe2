"""Bounds the calls that handlers make while they run: how deep they go, and that none waits for itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from corosrv.base.errors import Conflict
from corosrv.workers.dispatch.call import CallState, QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry

MAX_DEPTH = 8


def check_depth(waiting_keys: Sequence[str]) -> None:
    """Raises Conflict for a call that too many others wait for."""
    if len(waiting_keys) >= MAX_DEPTH:
        raise Conflict(f"a chain of {len(waiting_keys)} calls waits for this one; {MAX_DEPTH} may", None, "cycle")


def check_wait(entry: HandlerEntry, waiting_keys: Sequence[str]) -> None:
    """Raises Conflict for a call that would wait for a permit, where its own callers hold the last of those."""
    if not waiting_keys:
        return
    shared = {key for group in entry.groups for key in group.entries}
    n_held = sum(key in shared for key in waiting_keys)
    if n_held and n_held >= entry.n_permits:
        raise Conflict(
            f"the call would wait for a permit of {entry.key}, and the calls that wait for it hold them all",
            None,
            "cycle",
        )


def check_circle(call: QueuedCall, asks: Mapping[int, Collection[QueuedCall]]) -> None:
    """Raises Conflict for a call of a handler that would wait for ever: each permit for it waits for such a call.

    `asks`: the calls that handlers make and that have not ended, by the hand-overs that make them. A hand-over goes on
    unless one of its calls is stuck; a call is stuck if all that hold a permit for it are.
    """
    asker = call.job.terms.asker
    if not asker:
        return
    waiting_of = {asker: [*asks.get(asker, ()), call]}
    found = [*(_holders(call) or ())]
    while found:
        if (holder := found.pop()) in asks and holder not in waiting_of:
            waiting_of[holder] = list(asks[holder])
            found += [number for ask in waiting_of[holder] for number in _holders(ask) or ()]
    stuck = set(waiting_of)
    n_before = -1
    while len(stuck) != n_before:
        n_before = len(stuck)
        stuck = {holder for holder in stuck if any(_is_stuck(ask, stuck) for ask in waiting_of[holder])}
    if _is_stuck(call, stuck):
        raise Conflict(
            f"the call of {call.key} would wait for ever: each call that holds a permit for it waits, through others, "
            "for this one; call in one direction only, or give the handlers more concurrency",
            None,
            "cycle",
        )


def _is_stuck(call: QueuedCall, stuck: Collection[int]) -> bool:
    holders = _holders(call)
    return holders is not None and all(holder in stuck for holder in holders)


def _holders(call: QueuedCall) -> Sequence[int] | None:
    """Returns the hand-overs whose ends a call waits for, any of them; None if it may go on by itself."""
    if call.state is CallState.RUNNING:
        return (call.holder,)
    if call.state is not CallState.WAITING or not call.entry.is_ready or call.entry.has_free:
        return None
    return [number for group in call.entry.groups for number in group.running]
