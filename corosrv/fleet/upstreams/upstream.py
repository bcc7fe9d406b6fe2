"""Keeps one upstream: its state, its permits, and the calls that it runs."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

import gevent
from gevent import Greenlet
from gevent.event import Event

from corosrv.base.errors import CallCancelled, CorosrvError, DeadlinePassed, QueueFull
from corosrv.contracts.jobs.infer import HandlerCard, Headers
from corosrv.fleet.upstreams.aborter import Aborter, AbortKind
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits
from corosrv.fleet.upstreams.failures import (
    MAX_FAULTS,
    Breaker,
    BreakerState,
    Complaints,
    ProbeRecord,
    UpstreamBusy,
    UpstreamDown,
    UpstreamLost,
    UpstreamRemoved,
)
from corosrv.fleet.upstreams.forwarded_call import ForwardedCall
from corosrv.fleet.upstreams.spec import DEFAULT_CONCURRENCY, UpstreamSpec
from corosrv.workers.dispatch.estimates import SECONDS, Distribution
from corosrv.workers.dispatch.host import (
    CallListener,
    HandedCall,
    HandedItem,
    HandlerHost,
    LaneGroup,
    Permit,
    PermitPool,
    RunningCall,
)

log = logging.getLogger("corosrv.upstreams")

ANY_MODEL = ""  # the name under which every upstream takes calls that name no model
POOL = "upstreams"  # of all of them, as the dispatcher knows it
MAX_QUESTIONS = 64  # about what an upstream keeps, which wait for none of its calls
CALL_SECONDS = (*SECONDS, 120.0, 300.0, 600.0)  # bounds of histograms: answers may begin late, and be long


class UpstreamState(str, Enum):
    """States of an upstream. All but GONE follow from its probes and its calls."""

    PROBING = "probing"  # no probe has gone well, or the last ones failed
    READY = "ready"
    OPEN = "open"  # its calls fail, or it has asked for a pause
    DRAINING = "draining"  # no new calls; it leaves when nothing runs
    GONE = "gone"


_REASONS = {
    UpstreamState.DRAINING: "it is being removed",
    UpstreamState.GONE: "it was removed",
}


@dataclass(slots=True)
class UpstreamStats:
    """Counts the calls of one upstream that have ended; times are in seconds."""

    ok: int = 0
    aborted: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # by the code of the error
    n_first_bytes: int = 0
    first_bytes: Distribution = field(default_factory=lambda: Distribution(CALL_SECONDS))  # times until answers began
    durations: Distribution = field(default_factory=lambda: Distribution(CALL_SECONDS))  # of all calls that ended
    n_bytes: int = 0
    n_tokens: int = 0  # of the answers that tell theirs
    token_s: float = 0.0  # that those answers took


class Upstream:
    """Runs calls on one upstream, from the time it is added until it has drained. Belongs to the hub's thread."""

    def __init__(self, id: str, spec: UpstreamSpec, limits: ExchangeLimits) -> None:
        self.id = id
        self.spec = spec
        self.models = spec.models
        self.concurrency = spec.concurrency or DEFAULT_CONCURRENCY
        self.concurrency_from = "settings" if spec.concurrency else "default"
        self._slots = list(range(self.concurrency))
        self._n_slots = self.concurrency  # that there have ever been
        self.permits = PermitPool(self._slots)
        self._questions = PermitPool(range(MAX_QUESTIONS))
        self.probes = ProbeRecord()
        self.breaker = Breaker()
        self.stats = UpstreamStats()
        self.is_draining = False
        self.is_gone = False
        self.added_at = time.monotonic()
        self._limits = limits
        self._calls: dict[ForwardedCall, None] = {}  # in the order of their starts
        self._is_idle = Event()
        self._is_idle.set()
        self._listener: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None  # called when it has asked for a pause
        self._timer: Greenlet | None = None  # until the breaker lets a call pass
        self._timer_at = math.inf
        self._fault = ""  # the last one
        self.has_doubt = Event()  # it has answered 500, and is to be probed for that
        self._complaints = Complaints()
        self._n_doubts = 0  # of these answers, until the next probe says more
        parts = urlsplit(spec.url)
        self._base_path = parts.path
        self._key = os.environ.get(spec.api_key_env, "") if spec.api_key_env else ""
        self._connections = UpstreamConnections(spec.url, self.concurrency)
        self.is_sglang = False  # by the list of its models
        self.aborter = Aborter(id, self, spec.url)

    @property
    def state(self) -> UpstreamState:
        if self.is_gone:
            return UpstreamState.GONE
        if self.is_draining:
            return UpstreamState.DRAINING
        if not self.probes.is_up:
            return UpstreamState.PROBING
        now = time.monotonic()
        is_open = self.breaker.state(now) is not BreakerState.CLOSED or not self.breaker.lets_pass(now)
        return UpstreamState.OPEN if is_open else UpstreamState.READY

    @property
    def reason(self) -> str:
        """Returns why it takes no calls; an empty text if it does."""
        state = self.state
        breaker = self.breaker.state(time.monotonic())
        if state is UpstreamState.OPEN and breaker is not BreakerState.CLOSED:
            words = "its last calls failed" if breaker is BreakerState.OPEN else "single calls try it, after faults"
            return f"{words}: {self._fault}"
        if state is UpstreamState.OPEN:
            return "it has asked for a pause"
        return self.probes.reason if state is UpstreamState.PROBING else _REASONS.get(state, "")

    @property
    def takes_calls(self) -> bool:
        is_offered = self.probes.is_up and not self.is_draining and not self.is_gone
        return is_offered and self.breaker.lets_pass(time.monotonic())

    @property
    def is_worth_waiting(self) -> bool:
        """Tells whether calls should come: it takes them now, one by one as trials, or after a pause it asked for."""
        is_offered = self.probes.is_up and not self.is_draining and not self.is_gone
        return is_offered and self.breaker.state(time.monotonic()) is not BreakerState.OPEN

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def callers(self) -> Counter[str]:
        """Counts its calls by their callers."""
        return Counter(call.caller for call in self._calls)

    @property
    def connections(self) -> UpstreamConnections:
        return self._connections

    def set_room(self, n_calls: int | None) -> None:
        """Takes how many calls the upstream says that it runs at once; what it runs beyond that ends first.

        None: it does not say, and what it has said before holds. Changes nothing where an operator has said it.
        """
        if n_calls is None or self.spec.concurrency is not None:
            return
        if n_calls != self.concurrency:
            log.info("upstream %s gets %d calls at once, as it says itself", self.id, n_calls)
        self.concurrency, self.concurrency_from = n_calls, "upstream"
        self._connections.max_idle = n_calls
        while len(self._slots) > n_calls:
            self.permits.retire(self._slots.pop())
        while len(self._slots) < n_calls:
            self._slots.append(self._n_slots)
            self.permits.add(self._n_slots)
            self._n_slots += 1
        self._listener()

    def path(self, path: str) -> str:
        """Returns the path of a request on this upstream, which may lie below a path of its own."""
        return self._base_path + path

    def headers(self, headers: Headers = ()) -> Headers:
        """Returns the headers of a request to this upstream: with its key, if it has one of its own."""
        if not self._key:
            return headers
        others = tuple((name, value) for name, value in headers if name.lower() not in ("authorization", "x-api-key"))
        return (*others, ("Authorization", f"Bearer {self._key}"))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, and no earlier one any more, after each change of what it can take; it must not wait."""
        self._listener = listener

    def changed(self) -> None:
        """Calls the listener, now and when the breaker's state will change by time."""
        self._set_timer()
        self._listener()

    def _set_timer(self) -> None:
        now = time.monotonic()
        changes_at = math.inf if self.is_gone else self.breaker.next_change(now)
        if self._timer is not None:
            if self._timer_at == changes_at:
                return
            self._timer.kill(block=False)
            self._timer = None
        if changes_at != math.inf:
            self._timer = gevent.spawn_later(changes_at - now, self._on_time)
            self._timer_at = changes_at

    def _on_time(self) -> None:
        self._timer = None
        self.changed()

    # Calls.

    @property
    def takes_aborts(self) -> bool:
        kind = self.spec.abort
        return kind is AbortKind.SGLANG or (kind is AbortKind.AUTO and self.is_sglang)

    def abort_request(self, id: str) -> None:
        self.aborter.abort(id)

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        """Sends a call on, in a greenlet of its own."""
        (item,) = call.items
        is_trial = self.breaker.begin(time.monotonic())
        forwarded = ForwardedCall(self, permit, item, listener, Exchange(self._connections, self._limits), is_trial)
        self._calls[forwarded] = None
        self._is_idle.clear()
        forwarded.start()
        if is_trial:
            self.changed()  # no other call passes beside it
        return forwarded

    def ask(self, question: HandedItem, listener: CallListener) -> RunningCall:
        """Sends a question about what it keeps, beside its calls. Raises QueueFull where too many are asked."""
        permit = self._questions.try_acquire()
        if permit is None:
            raise QueueFull(f"{MAX_QUESTIONS} questions are asked of an upstream already; try again later")
        return self.start_call(permit, HandedCall(0, [question], 1, True, (), 0), listener)

    def begin_answer(self, call: ForwardedCall) -> None:
        """Counts the beginning of an answer, which decides a trial: a long answer must not keep others waiting."""
        now = time.monotonic()
        self.stats.n_first_bytes += 1
        self.stats.first_bytes.add(now - call.started_at, call.trace)
        if not call.fault:
            self._complaints.clear()
        is_decided = call.error_body is None or not call.error_body.is_pending
        if call.is_trial and is_decided:
            self._judge(call, None, now)
            call.is_trial = False
            self.changed()

    def end_call(self, call: ForwardedCall, error: CorosrvError | None) -> None:
        """Counts a call that has ended, whose permit is free again; `error`: of the upstream or of the call's own."""
        self._calls.pop(call, None)
        if not self._calls:
            self._is_idle.set()
        now = time.monotonic()
        self._count(call, error, now)
        self._judge(call, error, now)

    def _count(self, call: ForwardedCall, error: CorosrvError | None, now: float) -> None:
        stats = self.stats
        stats.durations.add(now - call.started_at, call.trace)
        stats.n_bytes += call.n_bytes
        if error is None and not call.fault:
            stats.ok += 1
            if (n_tokens := call.usage.n_tokens()) is not None:
                stats.n_tokens += n_tokens
                stats.token_s += now - call.started_at
        elif error is None:
            stats.failed["answered_5xx"] += 1
        elif isinstance(error, (CallCancelled, DeadlinePassed, UpstreamRemoved)):
            stats.aborted += 1
        else:
            stats.failed[error.code or type(error).__name__] += 1

    def _judge(self, call: ForwardedCall, error: CorosrvError | None, now: float) -> None:
        """Tells the breaker what a call says of the upstream."""
        if isinstance(error, (UpstreamBusy, UpstreamDown)) and error.seconds:
            self.breaker.pause(now + error.seconds)
            self.on_pause()
        is_own_fault = isinstance(error, (UpstreamDown, UpstreamLost)) and not isinstance(error, UpstreamRemoved)
        if error is None and call.is_complaint and not self._complaints.add(call.request_hash, now):
            self._doubt(call)
        elif is_own_fault or (error is None and call.fault):
            self._fault = call.fault or str(error)
            self.breaker.fail(call.is_trial, now, random.random())
        elif error is None:
            self.breaker.succeed(call.is_trial, now)
        else:
            self.breaker.forget_trial(call.is_trial)

    def _doubt(self, call: ForwardedCall) -> None:
        """Requests a probe: an answer of 500 says nothing by itself, for the request may have caused it."""
        self.breaker.forget_trial(call.is_trial)
        self._n_doubts = min(self._n_doubts + 1, MAX_FAULTS)
        self.has_doubt.set()

    def settle_doubts(self, failure: str) -> None:
        """Counts the answers of 500 that came before a probe as faults if the probe has failed, and forgets them."""
        n_doubts, self._n_doubts = self._n_doubts, 0
        if failure and n_doubts:
            self._fault = f"it answered 500, and {failure}"
            for _ in range(n_doubts):
                self.breaker.fail(True, time.monotonic(), random.random())
            self.changed()  # the breaker may have opened, and its pause has an end

    def wait_idle(self, timeout: float) -> bool:
        """Waits until it runs no call; returns False after `timeout` seconds."""
        return bool(self._is_idle.wait(timeout))

    def end_silent_calls(self, silent_since: float) -> None:
        """Ends, as lost, the calls that have received nothing since a time: probes say that the upstream is gone."""
        for call in list(self._calls):
            if call.heard_at < silent_since:
                call.fail(UpstreamLost("the upstream has fallen silent: it answers neither this call nor any probe"))

    def abort(self) -> None:
        """Ends all its calls as lost: their clients did not ask for that."""
        for call in list(self._calls):
            call.fail(UpstreamRemoved("the upstream was removed while it ran this call"))

    def close(self) -> None:
        """Ends everything. Twice is harmless."""
        self.is_gone = True
        self._set_timer()
        self._connections.close()


class UpstreamHost(HandlerHost):
    """Offers an upstream to the dispatcher with the models that it lists; there is one for each list."""

    def __init__(self, upstream: Upstream, incarnation: int) -> None:
        self.upstream = upstream
        self._incarnation = incarnation
        self._handlers = tuple(map(model_card, (ANY_MODEL, *upstream.models)))
        self._groups = (LaneGroup(tuple(range(len(self._handlers))), upstream.permits, upstream.spec.weight),)

    @property
    def id(self) -> str:
        return self.upstream.id

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def handlers(self) -> Sequence[HandlerCard]:
        return self._handlers

    @property
    def groups(self) -> Sequence[LaneGroup]:
        return self._groups

    @property
    def is_draining(self) -> bool:
        """Returns True while it takes no calls, for whatever reason."""
        return not self.upstream.takes_calls

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        return self.upstream.start_call(permit, call, listener)

    def on_change(self, listener: Callable[[], None]) -> None:
        self.upstream.on_change(listener)


def model_card(name: str, max_queue: int = 1_000_000) -> HandlerCard:
    """Describes a model of upstreams to the dispatcher. A generation may be repeated: it changes nothing."""
    return HandlerCard(name, platform="upstream", is_stream=True, is_idempotent=True, max_queue=max_queue)
