"""Follows one call on its way through the dispatcher."""

from __future__ import annotations

import math
from enum import Enum
from typing import Protocol

from corosrv.base.errors import CorosrvError, IllegalTransition
from corosrv.contracts.jobs.infer import InferJob
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY, FIRST_PRIORITY, LAST_PRIORITY, TracePart
from corosrv.workers.dispatch.answers import AnswerKeeper, HandlerReader, UnaryAnswer
from corosrv.workers.dispatch.entries import HandlerEntry
from corosrv.workers.dispatch.estimates import KeyTraffic
from corosrv.workers.dispatch.host import HandlerHost
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


class Attempt(Protocol):
    """Describes a hand-over, as one of its calls knows it."""

    @property
    def host(self) -> HandlerHost: ...

    @property
    def number(self) -> int: ...

    def abandon(self, item: int, is_deadline: bool) -> None:
        """Cancels one item, whose listener is called no more."""


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
        self.attempt: Attempt | None = None
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

    def begin(self, attempt: Attempt, item: int, now: float) -> None:
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
