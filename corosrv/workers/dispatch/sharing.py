"""Defines the contract between a dispatcher and a queue that several fronts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.host import CallListener, HandlerHost, RunningCall
from corosrv.workers.dispatch.registry import Registry
from corosrv.workers.dispatch.waiting import WaitingCalls

FreePermits = Mapping[frozenset[str], int]  # by the keys that they may run


class CallSharing(Protocol):
    """Takes the calls that a dispatcher cannot start at once. Belongs to the hub's thread; nothing waits."""

    @property
    def host(self) -> HandlerHost:
        """The host that such calls are said to run on."""

    def takes(self, call: QueuedCall, can_start: bool) -> bool:
        """Returns whether a new call goes into the shared queue. `can_start`: a permit for it is free here.

        Raises Unavailable for a call that can neither go there nor run here, and QueueFull.
        """

    def put(self, call: QueuedCall, listener: CallListener) -> RunningCall:
        """Puts a call into the queue; the listener hears of it as of one that a worker runs. Never raises."""

    def backlog(self, key: str) -> int:
        """Returns how many calls of a key wait in the shared queue, whichever front accepted them, as last seen."""

    def on_free(self) -> None:
        """Learns that permits may have become free, or workers have come."""


def free_permits(registry: Registry, waiting: WaitingCalls) -> FreePermits:
    """Counts the calls that free permits could run beside those that wait here already."""
    free: dict[frozenset[str], int] = {}
    for entry in registry:
        for group in entry.groups:
            if entry.key == next(iter(group.entries)) and group.has_free:  # each group once
                keys = frozenset(group.entries)
                limits = [other.batch_limits for other, _ in group.entries.values()]
                size = max(1 if limit is None else limit.max_size for limit in limits)
                free[keys] = free.get(keys, 0) + group.permits.available * size
    for keys in free:
        queues = [queue for key in keys if (queue := waiting.get(key)) is not None]
        free[keys] = max(free[keys] - sum(queue.depth for queue in queues), 0)
    return free
