"""Keeps all calls that wait: which one is next for whom, and how many there may be.

The bounds on calls and bytes count over all queues of a front.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from corosrv.base.errors import QueueFull
from corosrv.base.retry_after import retry_seconds
from corosrv.contracts.jobs.terms import CLASSES
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry, HostGroup
from corosrv.workers.dispatch.key_queue import KeyQueue
from corosrv.workers.dispatch.ledger import CallerAccount
from corosrv.workers.dispatch.policy import LocalQueue
from corosrv.workers.dispatch.queue import band_of
from corosrv.workers.dispatch.registry import name_of


@dataclass(slots=True)
class QueueBounds:
    """Counts the calls that wait and the bytes of their tensors, over all queues of a front."""

    max_calls: int = 4096
    max_bytes: int = 256 << 20
    n_calls: int = 0
    n_bytes: int = 0

    def problem(
        self, depth: int, max_depth: int, n_bytes: int, n_leaving: int = 0, bytes_leaving: int = 0
    ) -> str | None:
        """Returns why another call of so many bytes cannot wait in a queue of this depth; None if it can.

        `n_leaving`, `bytes_leaving`: calls and bytes that leave before; those of this queue are not in `depth`.
        """
        if depth >= max_depth:
            return f"{depth} calls wait for it, which is the limit"
        if self.n_calls - n_leaving >= self.max_calls:
            return f"{self.n_calls} calls wait here, which is the limit"
        if self.n_bytes - bytes_leaving + n_bytes > self.max_bytes:
            return f"the tensors of waiting calls would exceed {self.max_bytes} bytes"
        return None

    def add(self, n_bytes: int) -> None:
        self.n_calls += 1
        self.n_bytes += n_bytes

    def remove(self, n_bytes: int) -> None:
        self.n_calls -= 1
        self.n_bytes -= n_bytes


def queue_full(name: str, problem: str, wait: float) -> QueueFull:
    """Makes the refusal of a call, which says after how many seconds there should be room. `wait`: predicted."""
    error = QueueFull(f"{name} cannot be queued: {problem}; try again")
    error.retry_after = retry_seconds(wait)
    return error


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """Says what waits for a worker's permits: how many calls, and of the first one its order beside other servers'."""

    n_calls: int
    band: int  # tier and priority class, in one number
    caller: str
    weight: float  # of the caller
    number: int  # of its arrival here


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
        """Returns the call that has to leave so that a new one may wait; None if there is room.

        Raises QueueFull for a call that must not wait: for want of room, or because its time would be over.
        """
        problem = self._problem(call)
        displaced = None
        if problem is not None:
            displaced = self._giving_way(call, now)
            if displaced is None or self._problem(call, displaced) is not None:
                raise self.queue_full(call, problem, now)
        queue = self._queues[call.key]
        if call.entry.n_permits and call.deadline != math.inf and not queue.traffic.times.may_try(now):
            # Whoever has time even after all others need not be compared with them.
            wait = queue.longest_wait(now)
            if queue.is_too_late(call, now + wait) and queue.is_too_late(
                call, now + (wait := queue.wait(call, 1, now))
            ):
                problem = f"it would wait for some {wait:.1f} s, which is longer than its deadline allows"
                raise self.queue_full(call, problem, now)
        return displaced

    def queue_full(self, call: QueuedCall, problem: str, now: float) -> QueueFull:
        """Makes the refusal of a call, which says when those before it should have been given their permits."""
        is_counted = call.place is not None or call.local_host is not None
        return queue_full(name_of(call.entry), problem, self._queues[call.key].wait(call, -is_counted, now))

    def _problem(self, call: QueuedCall, displaced: QueuedCall | None = None) -> str | None:
        """Returns why a call cannot wait; None if it can, perhaps once another has left."""
        depth = self._queues[call.key].depth
        if displaced is None:
            return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes)
        depth -= displaced.key == call.key
        return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes, 1, displaced.n_bytes)

    def _giving_way(self, call: QueuedCall, now: float) -> QueuedCall | None:
        """Returns the call that gives its place in the full queue to a new one; None if none does.

        It is the last one of the caller that has most there, by its weight, in the worst tier: if that tier is worse,
        or if that caller still has no fewer than the new call's when it has given way. Else it is the last one of the
        new call's own caller, if its class is worse.
        """
        is_key_full = self._queues[call.key].depth >= call.entry.card.max_queue
        queues = [self._queues[call.key]] if is_key_full else list(self._queues.values())
        keys = {queue.entry.key for queue in queues}
        lines = [line for queue in queues for line in queue.lines()]
        strays = [waiting for local in self._locals.values() for waiting in local if waiting.key in keys]
        counts: dict[str, int] = {}  # by caller, which has an account in each ledger
        accounts: dict[str, CallerAccount] = {}
        for account, n_calls in ((line.account, len(line)) for line in lines):
            counts[account.caller] = counts.get(account.caller, 0) + n_calls
            accounts[account.caller] = account
        for waiting in strays:
            counts[waiting.account.caller] = counts.get(waiting.account.caller, 0) + 1
            accounts[waiting.account.caller] = waiting.account

        def last_of(caller: str) -> QueuedCall | None:
            calls = [waiting for waiting in strays if waiting.account.caller == caller]
            places = [line.last(now) for line in lines if line.account.caller == caller]
            calls += [place.item for place in places if place is not None and place.item is not None]
            return max(calls, key=lambda waiting: (waiting.level(now), waiting.due, waiting.number), default=None)

        own, tier = call.account, call.job.terms.tier
        n_own = counts.pop(own.caller, 0)
        most = max(
            counts, key=lambda caller: (accounts[caller].tier, counts[caller] / accounts[caller].weight), default=""
        )
        if counts and (last := last_of(most)) is not None:
            last_tier = last.level(now) // CLASSES
            is_less = (n_own + 1) / own.weight <= (counts[most] - 1) / accounts[most].weight
            if last_tier > tier or (last_tier == tier and is_less):
                return last
        last = last_of(own.caller)
        return last if last is not None and last.level(now) > band_of(tier, call.priority, 0) else None

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
            local.push(call)
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
            if queue is not None and (call := queue.head(now, group.host.id)) is not None:
                calls.append(call)
        for host_id, local in self._locals.items():
            own = host_id == group.host.id
            if (call := local.head(group, now) if own else local.tail(group, now)) is not None:
                calls.append(call)
        if len(calls) < 2:
            return calls[0] if calls else None
        return min(calls, key=lambda call: call.order(now))

    def claim_of(self, group: HostGroup, now: float) -> QueueClaim | None:
        """Returns what waits for a group's permits; None if nothing does, or the group takes no calls."""
        if not group.takes_calls or not self.has_call_for(group) or (first := self.next_for(group, now)) is None:
            return None
        n_calls = sum(queue.depth for key in group.entries if (queue := self._queues.get(key)) is not None)
        terms = first.job.terms
        return QueueClaim(n_calls, first.level(now), terms.caller, terms.weight, first.number)

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
