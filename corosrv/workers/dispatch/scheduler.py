"""Chooses which worker runs a call, and which call a worker runs next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

from corosrv.base.errors import DeadlinePassed
from corosrv.workers.dispatch.call import CallFollower, CallState, QueuedCall, handed_call
from corosrv.workers.dispatch.entries import HandlerEntry, HostGroup
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.dispatch.lives import CallLives
from corosrv.workers.dispatch.policy import STEAL_AFTER, Policy, idleness
from corosrv.workers.dispatch.registry import Registry, unavailable
from corosrv.workers.dispatch.timetable import AT_ONCE, Timetable
from corosrv.workers.dispatch.waiting import WaitingCalls


def too_late(call: QueuedCall, now: float) -> DeadlinePassed:
    """Makes the failure of a call that is not started, because it would hardly end in time."""
    left, median = call.deadline - now, call.traffic.times.median or 0.0
    return DeadlinePassed(
        f"the call's deadline could not be met, so it was not started: {1000 * left:.0f} ms were left, and half of the "
        f"calls of its handler take {1000 * median:.0f} ms or more"
    )


class Scheduler:
    """Brings waiting calls and free permits together. Belongs to the hub's thread; nothing waits.

    A free permit and a call that it could run do not exist at the same time once a method has returned, but for calls
    that gather for a batch, and for those that wait a little for the worker that the policy prefers.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        registry: Registry,
        waiting: WaitingCalls,
        lives: CallLives,
        timetable: Timetable,
        longest_start: float,
        policy: Policy,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._waiting = waiting
        self._lives = lives
        self._timetable = timetable
        self._longest_start = longest_start
        self._policy = policy
        self._turns = itertools.count(1)
        self._changed: dict[HostGroup, None] = {}  # groups that may have a permit for a waiting call, in order
        self._is_serving = False
        self.need_listeners: list[Callable[[str], None]] = []
        self.on_wait: Callable[[QueuedCall], None] = lambda call: None  # called when a call has begun to wait

    # Calls.

    def free_group(self, call: QueuedCall, now: float) -> HostGroup | None:
        """Returns the group that runs a new call at once; None if it has to wait."""
        if call.job.only_host:  # what waits for that host has had its free permits
            return next((group for group in call.offer.groups if group.has_free), None)
        queue = self._waiting.queue_of(call.entry)
        if queue.n_open:
            return None
        if queue.gathers and self._may_wait(call):
            return None
        group = self._policy.prefer(call)
        if group is not None and group.has_free:
            return group
        if group is not None and self._waiting.has_local_room(group.host.id) and self._may_wait(call):
            return None
        groups = [group for group in call.entry.groups if group.has_free]
        return self._policy.choose(call, groups) if groups else None

    def _may_wait(self, call: QueuedCall) -> bool:
        return call.job.terms.waits and self._waiting.has_room(call)

    def enter(self, call: QueuedCall, group: HostGroup | None) -> None:
        """Takes a new call: hands it to the group that `free_group` returned, or lets it wait."""
        now = self._clock()
        self._lives.begin(call)
        if group is not None:
            call.traffic.n_admitted += 1
            self._start([call], group, now)
            return
        group = None if call.job.only_host else self._policy.prefer(call)
        if group is not None and self._waiting.has_local_room(group.host.id):
            self._wait_for(call, group, now)
            return
        self._waiting.add(call, now)
        if not call.offer.is_ready:
            self._await_start(call, now)
        elif call.entry.batch_limits is not None:
            self.serve(call.entry.groups)
        self.on_wait(call)

    def resume(self, call: QueuedCall) -> None:
        """Requeues a call, for another worker than the last if there is one."""
        if not call.offer.is_callable:
            self._lives.stop(call, unavailable(call.offer, self._clock()))
            return
        now = self._clock()
        call.wait_again(now)
        call.entry.ledger.wait_again(call.account)
        groups = [group for group in call.entry.groups if group.n_permits and group.host is not call.avoided]
        best = self._policy.choose(call, groups) if groups and not call.job.only_host else None
        if best is not None and len(groups) < len(call.entry.groups) and self._waiting.has_local_room(best.host.id):
            self._wait_for(call, best, now)
        else:
            self._waiting.add(call, now)
            if not call.offer.is_ready:
                self._await_start(call, now)
            self.on_wait(call)
        self.serve(call.entry.groups)

    def _wait_for(self, call: QueuedCall, group: HostGroup, now: float) -> None:
        """Queues a call for one worker, until another may steal it."""
        call.stealable_at = now + STEAL_AFTER
        self._waiting.add(call, now, self._waiting.local_of(group.host.id))
        call.appointment = self._timetable.add(call.stealable_at, self._offer, call)
        self.on_wait(call)

    def _offer(self, call: QueuedCall) -> None:
        if call.state is not CallState.WAITING:
            return
        if groups := [group for group in call.entry.groups if group.has_free]:
            self.serve([self._policy.choose(call, groups)])
        self.serve(call.entry.groups)

    # Workers.

    def on_host_change(self, host: HandlerHost) -> None:
        """Looks at a host whose permits have changed, or which drains."""
        if not self._waiting.bounds.n_calls:
            return
        groups = self._registry.groups_of(host)
        if host.is_draining or any(group.permits.n_usable == 0 for group in groups):
            self.return_local(host.id)
            for group in groups:
                for entry, _ in list(group.entries.values()):
                    self.refuse_unservable(entry)
        self.serve(groups)

    def return_local(self, host_id: str) -> None:
        """Returns the calls that wait for one worker to their keys, where any may take them."""
        for entry in self._waiting.return_local(host_id, self._clock()):
            self.serve(entry.groups)

    def serve(self, groups: Iterable[HostGroup]) -> None:
        """Hands calls over while these groups have free permits."""
        if not self._waiting.bounds.n_calls:
            return
        groups = [group for group in groups if self._waiting.has_call_for(group) and group.has_free]
        self._changed.update(dict.fromkeys(sorted(groups, key=idleness)))
        if self._is_serving:
            return
        # A hand-over may fail at once, and change groups while they are served.
        self._is_serving = True
        try:
            while self._changed:
                group = next(iter(self._changed))
                del self._changed[group]
                self._serve(group)
        finally:
            self._is_serving = False

    def _serve(self, group: HostGroup) -> None:
        now = self._clock()
        while group.has_free and (call := self._waiting.next_for(group, now)) is not None:
            if call.deadline <= now:
                self._lives.expire(call)
            elif not self._waiting.queue_of(call.entry).may_start(call, now):
                self._lives.stop(call, too_late(call, now))
            else:
                self._start(self._waiting.take(call, now), group, now)
        if group.has_free and (ready_at := self._waiting.next_ready(group)) < group.looks_at:
            group.looks_at = ready_at
            self._timetable.add(ready_at, self._look_again, group)

    def _look_again(self, group: HostGroup) -> None:
        group.looks_at = math.inf
        self.serve([group])

    def _start(self, calls: list[QueuedCall], group: HostGroup, now: float) -> None:
        """Hands over a call, or a batch."""
        permit = group.permits.try_acquire()
        assert permit is not None
        first = calls[0]
        first.traffic.count_start(len(calls), now)
        group.turn = first.entry.turn = number = next(self._turns)
        attempt = CallFollower(self._lives, group.host, calls, now, number=number, running_of=group.running)
        for call in calls:
            if call.appointment is not None:
                self._timetable.cancel(call.appointment)
            call.traffic.count_wait(now - call.waits_since, call.trace)
        self._policy.note(first, group)
        handler = group.entries[first.entry.key][1]
        attempt.watch(group.host.start_call(permit, handed_call(calls, handler, number), attempt))

    # Handlers without a worker.

    def refuse_unservable(self, entry: HandlerEntry) -> None:
        """Refuses all calls that wait for a handler, or for it at one host, which none serves or may serve soon.

        Of thousands some are refused in later turns of the hub; none of them can run meanwhile.
        """
        if entry.is_callable:
            pinned = self._waiting.queue_of(entry).pinned()
            calls = [call for host_id in pinned if not entry.at(host_id).is_callable for call in pinned[host_id]]
        else:
            calls = self._waiting.calls_of(entry.key)
        for call in calls[:AT_ONCE]:
            self._lives.stop(call, unavailable(call.offer, self._clock()))
        if len(calls) > AT_ONCE:
            self._timetable.add(self._clock(), self.refuse_unservable, entry)

    def _await_start(self, call: QueuedCall, now: float) -> None:
        pools = {name: pool for name, pool in call.offer.pools.items() if pool.can_start}
        patience = max((pool.patience or self._longest_start for pool in pools.values()), default=0.0)
        call.appointment = self._timetable.add(now + patience, self._give_up_start, call)
        for pool in pools:
            for listener in self.need_listeners:
                listener(pool)

    def _give_up_start(self, call: QueuedCall) -> None:
        if call.state is CallState.WAITING and not call.offer.is_ready:
            self._lives.stop(call, unavailable(call.offer, self._clock()))
