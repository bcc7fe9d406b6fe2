"""Follows one call on its way through the dispatcher: while it waits (QueuedCall), and on a worker (CallFollower).

Handlers may call handlers. The checks here bound how deep that goes, and refuse a call that would wait for itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Protocol

from corosrv.base.errors import Conflict, CorosrvError, IllegalTransition
from corosrv.contracts.jobs.infer import InferJob, InferOutputs
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY, FIRST_PRIORITY, LAST_PRIORITY, TracePart
from corosrv.workers.dispatch.answers import AnswerKeeper, HandlerReader, UnaryAnswer
from corosrv.workers.dispatch.entries import HandlerEntry
from corosrv.workers.dispatch.estimates import KeyTraffic
from corosrv.workers.dispatch.host import CallListener, HandedCall, HandedItem, HandlerHost, RunningCall
from corosrv.workers.dispatch.ledger import CallerAccount
from corosrv.workers.dispatch.queue import FairQueue, QueuePlace, Rank, level_at, rank
from corosrv.workers.dispatch.timetable import Appointment

# Names, datatypes and non-batch dimensions of the inputs. The model and its version are those of the queue.
Signature = tuple[tuple[str, str, tuple[int, ...], bool], ...]


class CallState(Enum):
    WAITING = "waiting"  # for a permit
    RUNNING = "running"  # a worker has it
    PAUSED = "paused"  # it failed, and waits for its next attempt
    ENDED = "ended"  # its reader has its end

    __hash__ = object.__hash__  # Enum's own is written in Python, and asked for at each move


MOVES: dict[CallState, frozenset[CallState]] = {
    CallState.WAITING: frozenset({CallState.RUNNING, CallState.ENDED}),
    CallState.RUNNING: frozenset({CallState.WAITING, CallState.PAUSED, CallState.ENDED}),
    CallState.PAUSED: frozenset({CallState.WAITING, CallState.ENDED}),
    CallState.ENDED: frozenset(),
}


class QueuedCall:
    """Holds what the dispatcher knows of a call from `submit` to its end. Belongs to the hub's thread."""

    __slots__ = (
        "account", "answer", "appointment", "arrived", "attempt", "avoided", "deadline", "due", "entry", "expiry",
        "failure", "has_sent", "is_single", "is_trial", "item", "job", "keeper", "local_host", "n_attempts",
        "n_bytes", "n_refusals", "number", "owner", "place", "priority", "queue", "reader", "signature", "started_at",
        "state", "stealable_at", "trace", "traffic", "waited", "waits_since", "worker"
    )  # fmt: skip

    def __init__(self, job: InferJob, entry: HandlerEntry, traffic: KeyTraffic, number: int, now: float) -> None:
        card = entry.card
        self.job = job
        self.entry = entry
        self.traffic = traffic  # of its key
        self.number = number
        self.trace: TracePart | None = None  # its own part of its request's
        self.owner = ""  # the caller among whose calls it counts; empty: nobody's
        self.state = CallState.WAITING
        self.is_trial = False  # of a handler in quarantine
        self.reader: HandlerReader
        terms = job.terms
        entry.ledger.settle(now)  # what runs by now counts for where the caller begins
        self.account = entry.ledger.join(terms.owner or terms.caller, terms.tier, terms.weight)
        self.priority = min(max(terms.priority or DEFAULT_PRIORITY, FIRST_PRIORITY), LAST_PRIORITY)
        self.arrived = now
        self.deadline = math.inf if terms.deadline is None else terms.deadline
        if card.timeout_ms is not None:
            self.deadline = min(self.deadline, now + card.timeout_ms / 1000)
        self.due = min(self.deadline, now + card.slo_ms / 1000)  # the effective deadline, by which calls are ordered
        self.n_bytes = job.request.n_bytes
        self.keeper: AnswerKeeper | None = None  # of a call with an idempotency key
        self.failure: CorosrvError | None = None  # of an attempt after which it waits for another
        self.expiry: Appointment | None = None  # at its deadline
        self.appointment: Appointment | None = None  # for what is to change before it can run
        # While it waits.
        self.waits_since = now
        self.queue: FairQueue[QueuedCall] | None = None  # that it has a place in
        self.place: QueuePlace[QueuedCall] | None = None
        self.local_host: str | None = None  # the host in whose local queue it is instead
        self.stealable_at = now  # when another worker may take it from there
        self.avoided: HandlerHost | None = None  # where its last attempt failed
        self.is_single = False  # it takes part in no batch
        self.signature: Signature | None = None  # of its batches; None until it is needed
        # While it runs, and what is known of its last attempt afterwards.
        self.attempt: CallFollower | None = None
        self.item = 0  # its position in the batch
        self.answer: UnaryAnswer | None = None  # what is collected of the answer; None: passed on as it comes
        self.has_sent = False  # its client can have got something
        self.started_at: float | None = None
        self.worker: HandlerHost | None = None
        self.n_attempts = 0  # that were handed over
        self.n_refusals = 0  # hand-overs that failed before anything had run
        self.waited = 0.0  # seconds, over all attempts

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def offer(self) -> HandlerEntry:
        """Returns what may run it: all that offer its key, or its only host."""
        return self.entry.at(self.job.only_host)

    @property
    def is_stream(self) -> bool:
        """True if its answers are passed on as they come."""
        return self.job.stream and self.entry.card.is_stream

    def enter(self, state: CallState) -> None:
        """Moves to another state. Raises IllegalTransition."""
        if state not in MOVES[self.state]:
            raise IllegalTransition(f"call {self.number}", self.state, state)
        self.state = state

    def order(self, now: float) -> Rank:
        """Returns what waiting calls are compared by: tier, what the caller has had, class, deadline, arrival."""
        return rank(self.account, self.level(now), self.due, self.number)

    def level(self, now: float) -> int:
        """Returns its tier and priority class by now, in one number."""
        return level_at(self.priority, self.arrived, now, self.job.terms.tier)

    @property
    def holder(self) -> int:
        """The hand-over that runs it; 0 if another front does, or none."""
        return 0 if self.attempt is None else self.attempt.number

    def begin(self, attempt: CallFollower, item: int, now: float) -> None:
        """Records that it is handed to a worker."""
        self.enter(CallState.RUNNING)
        self.attempt = attempt
        self.item = item
        self.worker = attempt.host
        self.started_at = now
        self.waited += now - self.waits_since
        self.n_attempts += 1
        self.answer = None if self.is_stream else UnaryAnswer(self.entry.card)

    def wait_again(self, now: float) -> None:
        """Records that it waits for a permit once more."""
        self.enter(CallState.WAITING)
        self.waits_since = now


class Outcomes(Protocol):
    """Receives what becomes of handed-over calls, each of which has not ended yet. Nothing waits."""

    def pass_on(self, call: QueuedCall, outputs: InferOutputs, n_bytes: int) -> None:
        """Takes an answer of a call."""

    def complete(self, call: QueuedCall) -> None:
        """Takes the good end of a call."""

    def fail(self, call: QueuedCall, error: CorosrvError, is_batch: bool) -> None:
        """Takes the failure of a call. `is_batch`: of its whole batch, with that of all others."""

    def finish_attempt(self, attempt: CallFollower) -> None:
        """Takes the end of a hand-over, once, before the failures of its calls."""


class CallFollower(CallListener):
    """Follows one call or batch on a worker, and reports each call's end once; abandoned calls get no reports."""

    __slots__ = (
        "_calls", "_failures", "_n_running", "_n_well", "_outcomes", "_running", "accounts", "entry", "error", "host",
        "is_abandoned", "number", "running_of", "size", "started_at", "trace", "traffic"
    )  # fmt: skip

    def __init__(
        self,
        outcomes: Outcomes,
        host: HandlerHost,
        calls: Sequence[QueuedCall],
        now: float,
        number: int = 0,
        running_of: set[int] | None = None,
    ) -> None:
        """`number`: unique where its handler may make calls; `running_of`: those that hold a permit of its group."""
        self.number = number
        self.running_of = set() if running_of is None else running_of
        self.running_of.add(number)
        self._outcomes = outcomes
        self.host = host
        self._calls: list[QueuedCall | None] = list(calls)
        self._running: RunningCall | None = None
        self._n_running = len(calls)
        self._n_well = 0
        self._failures: list[tuple[QueuedCall, CorosrvError]] = []
        self.entry = calls[0].entry  # of the key that they share
        self.traffic = calls[0].traffic
        self.trace = calls[0].trace
        self.size = len(calls)
        self.started_at = now
        self.error: CorosrvError | None = None  # of one of the items
        self.is_abandoned = False  # some item was
        self.accounts: list[CallerAccount] = []  # of all its calls, also of those that end before their permit
        ledger, part = self.entry.ledger, 1 / self.size
        for item, call in enumerate(calls):
            call.begin(self, item, now)
            self.accounts.append(call.account)
            ledger.start(call.account, part, now)

    def watch(self, running: RunningCall) -> None:
        """Takes what `start_call` returned."""
        if self._n_running:
            self._running = running

    def abandon(self, item: int, is_deadline: bool) -> None:
        self._calls[item] = None
        self.is_abandoned = True
        if self._running is not None and self._n_running:
            self._running.cancel(item if self.size > 1 else -1, is_deadline=is_deadline)

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None:
        if (call := self._calls[item]) is not None:
            self._outcomes.pass_on(call, outputs, n_bytes)

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        call, self._calls[item] = self._calls[item], None
        self._n_running -= 1
        if error is None:
            self._n_well += 1
        else:
            self.error = error
        if call is not None and error is None:
            self._outcomes.complete(call)
        elif call is not None and error is not None:
            # Kept until the last item has ended: only then is it known whether the whole batch has failed.
            self._failures.append((call, error))
            self._calls[item] = call
        if self._n_running == 0:
            self._finish()

    def _finish(self) -> None:
        # What is held in a circle stays, with the request, until garbage is collected.
        self._running = None
        failures, self._failures = self._failures, []
        self._outcomes.finish_attempt(self)
        for call, error in failures:
            if self._calls[call.item] is call:  # not abandoned meanwhile
                self._calls[call.item] = None
                self._outcomes.fail(call, error, self.size > 1 and self._n_well == 0)

    def wait_for_room(self) -> None:
        call = self._calls[0]
        if call is not None and call.is_stream:
            call.reader.wait_for_room()


def handed_call(calls: Sequence[QueuedCall], handler: int, number: int = 0) -> HandedCall:
    """Returns what a worker is given for a batch, or for a single call."""
    items = [
        HandedItem(
            call.job.request,
            call.deadline if call.deadline != float("inf") else None,
            terms.request_id,
            terms.caller,
            call.priority,
            call.trace,
            terms.owner,
            terms.tier,
            terms.weight,
            terms.n_hops,
            terms.visited,
            terms.headers,
        )
        for call, terms in ((call, call.job.terms) for call in calls)
    ]
    chain = calls[0].job.terms.waiting_keys
    if len(calls) > 1:
        chain = max((call.job.terms.waiting_keys for call in calls), key=len)
    return HandedCall(handler, items, calls[0].n_attempts, calls[0].is_stream, (*chain, calls[0].entry.key), number)


MAX_DEPTH = 8


def check_depth(waiting_keys: Sequence[str]) -> None:
    """Raises Conflict for a call that too many others wait for."""
    if len(waiting_keys) >= MAX_DEPTH:
        words = f"a chain of {len(waiting_keys)} calls waits for this one, and {MAX_DEPTH} at most may"
        raise Conflict(words, None, "cycle")


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
