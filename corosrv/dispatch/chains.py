"""Bounds the calls that handlers make while they run: how deep they go, and that none waits for itself."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.dispatch.entries import HandlerEntry
from corosrv.errors import Conflict

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
