"""Puts the calls of a dispatcher that cannot start at once into the queue that several fronts share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from corosrv.base.errors import QueueFull, RedisUnavailable
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.fleet.cluster.accepted import AcceptedCalls, EntryTerms
from corosrv.fleet.cluster.call_codec import SharedRequest, encode_call
from corosrv.fleet.cluster.health import LinkHealth
from corosrv.fleet.cluster.queue_consumer import QueueConsumer
from corosrv.fleet.cluster.shared_call import SharedCall, SharedCallState
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry
from corosrv.workers.dispatch.host import CallListener, HandedCall, HandlerHost, LaneGroup, Permit, RunningCall
from corosrv.workers.dispatch.registry import unavailable
from corosrv.workers.dispatch.waiting import CallSharing

RETRY_AFTER = 1  # seconds
PATIENCE = 5.0  # seconds for which calls wait that no front serves: after Redis was away, fronts register anew


class QueueHost(HandlerHost):
    """Stands for all fronts that may run a call, where the dispatcher names the worker of one."""

    id = "shared-queue"
    incarnation = 0
    handlers: Sequence[HandlerCard] = ()
    groups: Sequence[LaneGroup] = ()
    is_draining = False

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        """Raises NotImplementedError: no permit is this host's."""
        raise NotImplementedError

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls nobody: the host has no permits."""


class SharedQueue(CallSharing):
    """Shares the calls of one dispatcher. Belongs to the hub's thread; nothing waits.

    A call that can start here at once does so without Redis, unless others wait for the same key.
    """

    def __init__(
        self,
        domain: str,
        health: LinkHealth,
        accepted: AcceptedCalls,
        consumer: QueueConsumer,
        *,
        max_calls: int,
        max_bytes: int,
        falls_back: bool,
    ) -> None:
        """`max_calls`: calls that may wait for one key; `max_bytes`: of all waiting calls of this front.

        `falls_back`: while Redis is away calls run here if they can.
        """
        self.consumer = consumer
        self._domain = domain
        self._health = health
        self._accepted = accepted
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._falls_back = falls_back
        self._host = QueueHost()
        self._is_stopping = False
        self._put: dict[SharedCall, HandlerEntry] = {}  # calls in the queue, with what they are for
        self._unserved_since: dict[str, float] = {}  # keys that calls wait for and no front serves

    def stop(self) -> None:
        """Puts nothing more into the queue, and takes nothing out; what runs goes on."""
        self._is_stopping = True
        self.consumer.stop()

    @property
    def host(self) -> HandlerHost:
        return self._host

    def backlog(self, key: str) -> int:
        """Returns how many entries of a key wait in the queue, as last seen."""
        return self.consumer.backlogs[key]

    def takes(self, call: QueuedCall, can_start: bool) -> bool:
        entry = call.entry
        is_here = entry.is_ready or (entry.is_startable and not entry.is_elsewhere)
        if not self._health.is_up or self._is_stopping:
            if is_here and self._falls_back:
                return False
            error = RedisUnavailable("the queue that servers share cannot be reached now")
            error.retry_after = RETRY_AFTER
            raise error
        if not call.job.terms.waits or not (entry.is_ready or entry.is_elsewhere):
            return False
        if entry.batch_limits is not None and entry.has_free:
            return False  # it gathers here
        if can_start and not self.backlog(call.key) and self.consumer.has_unreserved(call.key):
            return False
        if self._accepted.n_bytes + call.n_bytes > self._max_bytes:
            full = QueueFull(f"the bodies of waiting calls would exceed {self._max_bytes} bytes; try again")
            full.retry_after = RETRY_AFTER
            raise full
        return True

    def on_free(self) -> None:
        self.consumer.on_free()

    def put(self, call: QueuedCall, listener: CallListener) -> RunningCall:
        """Puts a call into the queue. Never raises."""
        card, terms = call.entry.card, call.job.terms
        shared = SharedRequest(
            call.job.request,
            call.job.stream,
            terms.caller,
            terms.request_id,
            call.priority,
            terms.session,
            terms.waiting_keys,
        )
        remaining = None if call.deadline == float("inf") else call.deadline - time.monotonic()
        entry_terms = EntryTerms(
            self._domain,
            call.key,
            call.priority,
            min(card.max_queue, self._max_calls),
            remaining,
            card.is_idempotent,
            terms.idempotency_key,
        )
        entry = call.entry
        if entry.is_ready:
            self.consumer.backlogs[call.key] += 1
        may_run_here = lambda: self._falls_back and entry.is_ready and entry.card.is_idempotent  # noqa: E731
        shared_call = self._accepted.enqueue(entry_terms, encode_call(shared), listener, may_run_here=may_run_here)
        self._put[shared_call] = entry
        return shared_call

    def refuse_unservable(self) -> None:
        """Ends the calls in the queue that no front has served for PATIENCE seconds."""
        now = time.monotonic()
        unserved: dict[str, float] = {}
        for call, entry in list(self._put.items()):
            if call.state is SharedCallState.ENDED:
                del self._put[call]
            elif not entry.is_callable:
                unserved[entry.key] = self._unserved_since.get(entry.key, now)
                if now - unserved[entry.key] >= PATIENCE:
                    call.refuse(unavailable(entry, now))
        self._unserved_since = unserved
