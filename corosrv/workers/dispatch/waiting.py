"""Keeps all calls that wait: which one is next for whom, and how many there may be.

`CallSharing` is the contract of a queue that several fronts share, which takes calls that cannot start here at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from corosrv.base.errors import QueueFull
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry, HostGroup
from corosrv.workers.dispatch.host import CallListener, HandlerHost, RunningCall
from corosrv.workers.dispatch.key_queue import KeyQueue
from corosrv.workers.dispatch.policy import LocalQueue
from corosrv.workers.dispatch.queue import QueueBounds, queue_full
from corosrv.workers.dispatch.registry import Registry, name_of


class WaitingCalls:
    """Owns the queues of all keys, the local queues of workers, and the bounds of both. The time is passed in."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        self._queues: dict[str, KeyQueue] = {}
        self._busy_keys: set[str] = set()  # those that calls wait for
        self._locals: dict[str, LocalQueue] = {}  # by the id of the host; none of them is empty

    def queue_of(self, entry: HandlerEntry) -> KeyQueue:
        queue = self._queues.get(entry.key)
        if queue is None:
            queue = self._queues[entry.key] = KeyQueue(entry)
        assert queue.entry is entry, "a key is forgotten with its entry"
        return queue

    def get(self, key: str) -> KeyQueue | None:
        return self._queues.get(key)

    def forget(self, key: str) -> None:
        """Drops the queue of a key that no host offers any more. No call may wait in it."""
        queue = self._queues.pop(key, None)
        assert queue is None or queue.depth == 0, f"calls wait for {key}, which is forgotten"

    def __iter__(self) -> Iterator[KeyQueue]:
        return iter(self._queues.values())

    def calls_of(self, key: str) -> list[QueuedCall]:
        """Returns the calls that wait for a key, those of local queues among them."""
        queue = self._queues.get(key)
        if queue is None or queue.depth == 0:
            return []
        return [*queue, *(call for local in self._locals.values() for call in local if call.key == key)]

    def oldest(self, queue: KeyQueue) -> float | None:
        """Returns when the call arrived that has waited longest for a key; None if none waits."""
        times = [call.arrived for local in self._locals.values() for call in local if call.key == queue.entry.key]
        if (central := queue.oldest()) is not None:
            times.append(central)
        return min(times, default=None)

    # Entering and leaving.

    def make_room(self, call: QueuedCall, now: float) -> QueuedCall | None:
        """Returns the call of a worse class that has to leave so that a new one may wait; None if there is room.

        Raises QueueFull for a call that must not wait: for want of room, or because its time would be over.
        """
        problem = self._problem(call)
        displaced = None
        if problem is not None:
            displaced = self._last_below(call, now)
            if displaced is None or self._problem(call, displaced) is not None:
                raise self.queue_full(call, problem, now)
        queue = self._queues[call.key]
        if call.entry.n_permits and call.deadline != math.inf and not queue.traffic.times.may_try(now):
            wait = queue.wait(call.priority, 1, now)
            if queue.is_too_late(call, now + wait):
                problem = f"it would wait for some {wait:.1f} s, which is longer than its deadline allows"
                raise self.queue_full(call, problem, now)
        return displaced

    def queue_full(self, call: QueuedCall, problem: str, now: float) -> QueueFull:
        """Makes the refusal of a call, which says when those before it should have been given their permits."""
        is_counted = call.place is not None or call.local_host is not None
        return queue_full(name_of(call.entry), problem, self._queues[call.key].wait(call.priority, -is_counted, now))

    def _problem(self, call: QueuedCall, displaced: QueuedCall | None = None) -> str | None:
        """Returns why a call cannot wait; None if it can, perhaps once another has left."""
        depth = self._queues[call.key].depth
        if displaced is None:
            return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes)
        depth -= displaced.key == call.key
        return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes, 1, displaced.n_bytes)

    def _last_below(self, call: QueuedCall, now: float) -> QueuedCall | None:
        """Returns the last of the worst class that waits in the full queue, if that is worse than the call's."""
        is_key_full = self._queues[call.key].depth >= call.entry.card.max_queue
        queues = [self._queues[call.key]] if is_key_full else list(self._queues.values())
        keys = {queue.entry.key for queue in queues}
        calls = [last for queue in queues if (last := queue.last(now)) is not None]
        calls += [waiting for local in self._locals.values() for waiting in local if waiting.key in keys]
        last = max(calls, key=lambda waiting: waiting.order(now), default=None)
        return last if last is not None and last.order(now)[0] > call.priority else None

    def has_room(self, call: QueuedCall) -> bool:
        """Returns whether a call may wait without another having to leave."""
        return self._problem(call) is None

    def add(self, call: QueuedCall, now: float, local: LocalQueue | None = None) -> None:
        """Queues a call, in its key's queue or in a local one."""
        call.traffic.n_admitted += 1
        self.bounds.add(call.n_bytes)
        self._busy_keys.add(call.key)
        queue = self._queues[call.key]
        if local is not None:
            local.push(call, now)
            queue.n_local += 1
        else:
            queue.push(call, now)

    def leave(self, call: QueuedCall) -> None:
        """Removes a call that will not be handed over."""
        call.traffic.n_left += 1
        self._remove(call)

    def _remove(self, call: QueuedCall) -> None:
        self.bounds.remove(call.n_bytes)
        queue, host_id = self._queues[call.key], call.local_host
        if host_id is None:
            queue.remove(call)
        else:
            self._remove_local(call, queue, host_id)
        self._note_whether_empty(queue)

    def _remove_local(self, call: QueuedCall, queue: KeyQueue, host_id: str) -> None:
        queue.n_local -= 1
        local = self._locals[host_id]
        local.remove(call)
        if not local:
            del self._locals[host_id]

    def _note_whether_empty(self, queue: KeyQueue) -> None:
        if not queue.depth:
            self._busy_keys.discard(queue.entry.key)

    # Local queues.

    def local_of(self, host_id: str) -> LocalQueue:
        """Returns the local queue of a host, into which a call must go at once if it is new."""
        return self._locals.setdefault(host_id, LocalQueue(host_id))

    def has_local_room(self, host_id: str) -> bool:
        local = self._locals.get(host_id)
        return local is None or not local.is_full

    def return_local(self, host_id: str, now: float) -> list[HandlerEntry]:
        """Requeues the calls of a host's local queue in the queues of their keys; returns their entries."""
        calls = list(self._locals.pop(host_id, ()))
        for call in calls:
            queue = self._queues[call.key]
            queue.n_local -= 1
            call.local_host = None
            queue.push(call, now)
        return [call.entry for call in calls]

    # Choosing.

    def has_call_for(self, group: HostGroup) -> bool:
        """Returns whether a call waits that a group may run, now or later."""
        return not self._busy_keys.isdisjoint(group.entries)

    def next_for(self, group: HostGroup, now: float) -> QueuedCall | None:
        """Returns the call that a free permit of a group should run: the first over all keys that it serves."""
        calls = []
        for key in group.entries:
            queue = self._queues.get(key)
            if queue is not None and (call := queue.head(now)) is not None:
                calls.append(call)
        for host_id, local in self._locals.items():
            own = host_id == group.host.id
            if (call := local.head(group, now) if own else local.tail(group, now)) is not None:
                calls.append(call)
        if len(calls) < 2:
            return calls[0] if calls else None
        return min(calls, key=lambda call: call.order(now))

    def take(self, call: QueuedCall, now: float) -> list[QueuedCall]:
        """Removes a call that is handed over now, and those that run in one batch with it."""
        if call.local_host is not None:
            self._remove(call)
            return [call]
        queue = self._queues[call.key]
        calls = queue.take(call, now)
        for taken_call in calls:
            self.bounds.remove(taken_call.n_bytes)
        self._note_whether_empty(queue)
        return calls

    def next_ready(self, group: HostGroup) -> float:
        """Returns when the next batch is ready that a group may run; infinity if nothing gathers."""
        queues = [queue for key in group.entries if (queue := self._queues.get(key)) is not None]
        return min((queue.next_ready() for queue in queues), default=float("inf"))


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
        """Queues a call, whose listener is called as for one that a worker runs. Never raises."""

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
