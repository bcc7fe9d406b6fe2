"""Keeps all calls that wait: which one is next for whom, and how many there may be.

The bounds on calls and bytes count over all queues of a front.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from corosrv.base.errors import QueueFull, retry_seconds
from corosrv.contracts.jobs.terms import CLASSES
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry, HostGroup
from corosrv.workers.dispatch.key_queue import FEW_COMPARED, KeyQueue
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
    """Says how many calls wait for a worker's permits, and how the first of them ranks among those of other servers."""

    n_calls: int
    band: int  # tier and priority class, in one number
    caller: str
    weight: float  # of the caller
    number: int  # of its arrival here


class CallerShares:
    """Finds the caller with most calls in a queue, by its weight, among those of the worst tier.

    A change, and a search, take O(log n) of the different shares that callers have.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, dict[CallerAccount, int]] = {}  # calls by accounts, of each caller
        self._shares: dict[str, tuple[int, float]] = {}  # tier, and calls by the weight
        self._callers: dict[tuple[int, float], dict[str, None]] = {}  # that have a share
        self._order: list[tuple[int, float]] = []  # shares that callers have, the least first

    def n_calls(self, caller: str) -> int:
        return sum(self._accounts.get(caller, {}).values())

    def accounts(self, caller: str) -> Collection[CallerAccount]:
        """Returns the accounts of a caller, of which each ledger has one."""
        return self._accounts.get(caller, {}).keys()

    def add(self, account: CallerAccount, n_calls: int) -> None:
        """Counts calls of an account; a negative number of those that leave."""
        caller = account.caller
        counts = self._accounts.setdefault(caller, {})
        counts[account] = counts.get(account, 0) + n_calls
        if not counts[account]:
            del counts[account]
        self._leave(caller)
        if not counts:
            del self._accounts[caller]
            return
        share = self._shares[caller] = account.tier, sum(counts.values()) / account.weight
        if share not in self._callers:
            self._callers[share] = {}
            insort(self._order, share)
        self._callers[share][caller] = None

    def _leave(self, caller: str) -> None:
        share = self._shares.pop(caller, None)
        if share is None:
            return
        callers = self._callers[share]
        del callers[caller]
        if not callers:
            del self._callers[share]
            del self._order[bisect_left(self._order, share)]

    def most(self, but: str) -> str | None:
        """Returns the caller with most, this one left out; None if there is no other."""
        for share in reversed(self._order):
            for caller in self._callers[share]:
                if caller != but:
                    return caller
        return None


class WaitingCalls:
    """Owns the queues of all keys, the local queues of workers, and the bounds of both. The time is passed in."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        self._queues: dict[str, KeyQueue] = {}
        self._busy_keys: set[str] = set()  # those that calls wait for
        self._locals: dict[str, LocalQueue] = {}  # by the id of the host; none of them is empty
        self._shares: dict[str, CallerShares] = {}  # of queues that were full since they were empty, by their keys

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
        wait = self._queues[call.key].wait(call, -is_counted, now, FEW_COMPARED)
        return queue_full(name_of(call.entry), problem, wait)

    def _problem(self, call: QueuedCall, displaced: QueuedCall | None = None) -> str | None:
        """Returns why a call cannot wait; None if it can, perhaps once another has left."""
        depth = self._queues[call.key].depth
        if displaced is None:
            return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes)
        depth -= displaced.key == call.key
        return self.bounds.problem(depth, call.entry.card.max_queue, call.n_bytes, 1, displaced.n_bytes)

    def _giving_way(self, call: QueuedCall, now: float) -> QueuedCall | None:
        """Returns the call that gives its place in the full queue to a new one; None if none does.

        It is the last one of the caller who has most there, by its weight, in the worst tier: if that tier is worse
        than the new call's, or if this caller then still has at least as many as the new call's. Else it is the last
        one of the new call's own caller, if its class is worse.
        """
        is_key_full = self._queues[call.key].depth >= call.entry.card.max_queue
        shares = self._shares_of(call.key if is_key_full else "")
        own, tier = call.account, call.job.terms.tier
        most = shares.most(own.caller)
        if most is not None and (last := self._last_of(shares.accounts(most), is_key_full, call.key, now)) is not None:
            last_tier = last.level(now) // CLASSES
            weight = last.account.weight
            is_less = (shares.n_calls(own.caller) + 1) / own.weight <= (shares.n_calls(most) - 1) / weight
            if last_tier > tier or (last_tier == tier and is_less):
                return last
        last = self._last_of(shares.accounts(own.caller), is_key_full, call.key, now)
        return last if last is not None and last.level(now) > band_of(tier, call.priority, 0) else None

    def _last_of(
        self, accounts: Collection[CallerAccount], is_key_full: bool, key: str, now: float
    ) -> QueuedCall | None:
        """Returns the last call of a caller in the queue of a key, or in all; None if it has none there."""
        queues = [self._queues[key]] if is_key_full else self._queues.values()
        calls = [
            waiting
            for local in self._locals.values()
            for waiting in local
            if waiting.account in accounts and (waiting.key == key or not is_key_full)
        ]
        for line in (line for queue in queues for account in accounts for line in queue.lines_of(account)):
            if (place := line.last(now)) is not None and place.item is not None:
                calls.append(place.item)
        return max(calls, key=lambda waiting: (waiting.level(now), waiting.due, waiting.number), default=None)

    def _shares_of(self, key: str) -> CallerShares:
        """Returns who has how much of the queue of a key, or of all for an empty one; kept up until that is empty."""
        shares = self._shares.get(key)
        if shares is None:
            shares = self._shares[key] = CallerShares()
            for queue in [self._queues[key]] if key else self._queues.values():
                for line in queue.lines():
                    shares.add(line.account, len(line))
            for call in (call for local in self._locals.values() for call in local if key in ("", call.key)):
                shares.add(call.account, 1)
        return shares

    def _note_share(self, call: QueuedCall, n_calls: int) -> None:
        for key in (call.key, ""):
            if (shares := self._shares.get(key)) is not None:
                shares.add(call.account, n_calls)

    def has_room(self, call: QueuedCall) -> bool:
        """Returns whether a call may wait without another having to leave."""
        return self._problem(call) is None

    def add(self, call: QueuedCall, now: float, local: LocalQueue | None = None) -> None:
        call.traffic.n_admitted += 1
        self.bounds.add(call.n_bytes)
        self._busy_keys.add(call.key)
        if self._shares:
            self._note_share(call, 1)
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
        if self._shares:
            self._note_share(call, -1)
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
            self._shares.pop(queue.entry.key, None)
        if not self.bounds.n_calls:
            self._shares.clear()

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
            if self._shares:
                self._note_share(taken_call, -1)
        self._note_whether_empty(queue)
        return calls

    def next_ready(self, group: HostGroup) -> float:
        """Returns when the next batch is ready that a group may run; infinity if nothing gathers."""
        queues = [queue for key in group.entries if (queue := self._queues.get(key)) is not None]
        return min((queue.next_ready() for queue in queues), default=float("inf"))
