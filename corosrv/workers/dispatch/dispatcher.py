"""Gives calls to workers: queues them, hands them over when a permit is free, and answers each once."""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence

from corosrv.base.errors import (
    CorosrvError,
    DeadlinePassed,
    NoCapacity,
    NotFound,
    QueueFull,
    ShuttingDown,
    Starting,
    Unavailable,
)
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferWorker, ModelStanding, Target
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.answers import (
    AnswerKeeper,
    CallAnswer,
    CallClaim,
    CallRecords,
    HandlerReader,
    check_answerable,
    digest_of,
)
from corosrv.workers.dispatch.call import CallState, QueuedCall, check_circle, check_depth, check_wait
from corosrv.workers.dispatch.entries import HandlerEntry, PoolStanding
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.dispatch.lives import CallLives
from corosrv.workers.dispatch.policy import DispatchSettings, LeastLoaded, Policy
from corosrv.workers.dispatch.registry import Registry, check_ready, look_up, name_of
from corosrv.workers.dispatch.scheduler import Scheduler, too_late
from corosrv.workers.dispatch.stats import DispatchStats, key_stats
from corosrv.workers.dispatch.timetable import HubAlarm, Timetable
from corosrv.workers.dispatch.waiting import QueueBounds, QueueClaim, WaitingCalls

log = logging.getLogger("corosrv.dispatch")


class Dispatcher(InferWorker):
    """Takes all calls of handlers to workers. Belongs to the hub's thread; only readers and `drain` wait.

    Hosts are added when they have registered, and removed when their process has ended or is to get no more calls. A
    pool that is expected lets calls wait for its next worker.
    """

    def __init__(
        self,
        settings: DispatchSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_alarm: Callable[[Callable[[], None]], HubAlarm] = HubAlarm,
        jitter: Callable[[], float] = random.random,
        policy: Policy | None = None,
    ) -> None:
        settings = settings or DispatchSettings()
        self._clock = clock
        self._policy = policy or LeastLoaded()
        self._registry = Registry()
        self._waiting = WaitingCalls(QueueBounds(settings.max_calls, settings.max_bytes))
        self._timetable = Timetable(clock, make_alarm)
        self._lives = CallLives(
            clock,
            self._timetable,
            self._waiting,
            jitter,
            settings.logs_json,
            lambda call: self._scheduler.resume(call),
            CallRecords(settings.idempotency_bytes, settings.idempotency_s, settings.n_callers),
        )
        self._scheduler = Scheduler(
            clock, self._registry, self._waiting, self._lives, self._timetable, settings.longest_start, self._policy
        )
        self.last_number = 0  # of the call that came last
        self._why_unknown: Callable[[], str] | None = None
        self._calls_per_caller = settings.calls_per_caller
        self._is_shutting_down = False

    # Hosts and pools.

    def add_host(self, host: HandlerHost) -> bool:
        """Offers a host's handlers, in place of those of its earlier incarnation.

        Returns False, and changes nothing, if this incarnation or a later one is known.
        """
        if not self._registry.add(host, self._clock()):
            return False
        host.on_change(functools.partial(self._scheduler.on_host_change, host))
        self._scheduler.return_local(host.id)
        self._scheduler.serve(self._registry.groups_of(host))
        self._settle()
        return True

    def remove_host(self, host: HandlerHost) -> bool:
        """Offers a host's handlers no more; calls that it runs go on. Returns False if another incarnation is known."""
        if not self._registry.remove(host, self._clock()):
            return False
        self._policy.forget(host.id)
        self._scheduler.return_local(host.id)
        self._settle()
        return True

    def note_crash(self, keys: Sequence[str]) -> None:
        """Records that a worker died while handlers of these keys ran. The likeliest of them is blamed."""
        now = self._clock()
        entries = [entry for key in keys if (entry := self._registry.get(key)) is not None]
        if not entries:
            return
        blamed = max(entries, key=lambda entry: entry.quarantine.suspicion(now))
        log.warning("a worker died while %s ran", name_of(blamed))
        if blamed.quarantine.crash(now):
            seconds = blamed.quarantine.pause_left(now)
            log.error(
                "%s is in quarantine for %.0f s: its worker processes died while it ran", name_of(blamed), seconds
            )
            self._scheduler.refuse_unservable(blamed)
            self._timetable.add(now + seconds, self._end_pause, blamed)

    def _end_pause(self, entry: HandlerEntry) -> None:
        """Ends a quarantine's pause by time: clients that ask for readiness first would never make the trial call."""
        entry.quarantine.state(self._clock())

    def await_pools(self, reason: Callable[[], str]) -> None:
        """Refuses calls of whatever is not known yet as Starting, until a pool is expected; `reason`: for clients."""
        self._why_unknown = reason

    def expect(
        self,
        pool: str,
        cards: Iterable[HandlerCard],
        *,
        can_start: bool = True,
        reason: str = "",
        patience: float | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Says what the workers of a pool offer. Where none is ready, calls wait if the pool can start one.

        They wait for `patience` seconds at most. Otherwise they are refused, those that wait as well, with `reason`:
        words for clients, and `retry_after` seconds if that is known. Replaces what was said of this pool before.
        """
        self._why_unknown = None
        standing = PoolStanding(can_start, reason, patience, retry_after)
        self._registry.expect(pool, cards, standing, self._clock())
        self._settle()

    def forget(self, pool: str) -> None:
        """Ends the expectation of a pool; its hosts stay until they are removed."""
        self._registry.forget(pool, self._clock())
        self._settle()

    def on_need(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the name of each pool that could start the worker that a call has begun to wait for."""
        self._scheduler.need_listeners.append(listener)

    # Several fronts.

    def on_wait(self, listener: Callable[[QueuedCall], None]) -> None:
        """Calls `listener`, and no earlier one any more, with each call that has begun to wait. It must not wait."""
        self._scheduler.on_wait = listener

    def claim(self, host_id: str) -> QueueClaim | None:
        """Returns what waits here for the permits of a host; None if nothing does."""
        now = self._clock()
        claims = (self._waiting.claim_of(group, now) for group in self._registry.groups_at(host_id))
        return next((claim for claim in claims if claim is not None), None)

    @property
    def n_waiting(self) -> int:
        """The number of calls that wait for a permit."""
        return self._waiting.bounds.n_calls

    def _settle(self) -> None:
        """Refuses calls that no worker can serve any more, and purges handlers that were not offered for long."""
        for queue in self._waiting:
            self._scheduler.refuse_unservable(queue.entry)
        self._purge()

    def _purge(self) -> None:
        for key in self._registry.purge(self._clock()):
            self._waiting.forget(key)

    # Calls.

    def standings(self) -> tuple[ModelStanding, ...]:
        self._purge()
        states = ((entry, entry.state()) for entry in self._registry)
        return tuple(
            ModelStanding(entry.card, state, "" if state == "READY" else entry.reason) for entry, state in states
        )

    def cards_here(self) -> list[HandlerCard]:
        """Returns the handlers that workers of this server take calls of now."""
        return [entry.card for entry in self._registry if entry.is_ready]

    def find(self, target: Target) -> HandlerCard:
        return self._look_up(target).card

    def submit(self, job: InferJob) -> HandlerReader:
        """Runs a call, or queues it. Never waits.

        Raises what `find` raises, Unavailable, QueueFull, NoCapacity for a call that must not wait, NotOffered and
        Refused for a form of answer that the handler does not have, Conflict for a call that would wait for itself, and
        DeadlinePassed; for a call with an idempotency key KeyReused, and Conflict while the first one runs.
        """
        if self._is_shutting_down:
            raise ShuttingDown("the server is shutting down")
        now = self._clock()
        if not job.terms.idempotency_key or not self._lives.records.is_on:
            return self._submit(job, now, None)
        begun = self._begin_keyed(job, now)
        if isinstance(begun, CallAnswer):
            return HandlerReader.of_answer(begun)
        try:
            return self._submit(job, now, begun)
        except BaseException:
            begun.drop()
            raise

    def _begin_keyed(self, job: InferJob, now: float) -> CallAnswer | CallClaim:
        """Returns the answer that is known already, or the claim of a call that has to run."""
        terms = job.terms
        return self._lives.records.begin(terms.caller, terms.idempotency_key, digest_of(job), now)

    def _submit(self, job: InferJob, now: float, claim: CallClaim | None) -> HandlerReader:
        entry = self._entry_of(job)
        queue = self._waiting.queue_of(entry)
        queue.count_arrival(now)
        self._lives.budget.count_call(now)
        self.last_number += 1
        call = QueuedCall(job, entry, queue.traffic, self.last_number, now)
        if not job.terms.waiting_keys:  # it comes from a client of this front
            call.owner = job.terms.owner or job.terms.caller
        try:
            self._check(call, now)
            group = self._scheduler.free_group(call, now)
            if group is not None and not queue.may_start(call, now):
                raise too_late(call, now)
            displaced = self._check_wait(call, now) if group is None else None
        except BaseException as error:
            entry.ledger.leave(call.account, waits=True)
            if isinstance(error, CorosrvError):
                queue.traffic.count_end(error)
            raise
        if claim is not None:
            call.keeper = AnswerKeeper(claim, entry.card)
        call.reader = HandlerReader(entry.card, functools.partial(self._lives.cancel, call))
        call.is_trial = entry.quarantine.begin()
        self._scheduler.enter(call, group)
        if displaced is not None and displaced.state is CallState.WAITING:
            reason = (
                "a more urgent call" if displaced.account.caller == call.account.caller else "a call of another caller"
            )
            self._lives.stop(displaced, self._waiting.queue_full(displaced, f"{reason} took its place", now))
        return call.reader

    def _entry_of(self, job: InferJob) -> HandlerEntry:
        if job.card is None:
            return self._look_up(job.target)
        self._purge()
        entry = self._registry.get(job.card.key)
        if entry is None:
            raise NotFound(f"the model '{job.card.name}' does not exist here any more", "model_name", "model_not_found")
        return entry

    def _look_up(self, target: Target) -> HandlerEntry:
        """Returns the entry that a call would get. Raises what look_up raises, and Starting before the first pool."""
        self._purge()
        try:
            return look_up(self._registry, target)
        except NotFound:
            if self._why_unknown is None:
                raise
            raise Starting(self._why_unknown()) from None

    def _check(self, call: QueuedCall, now: float) -> None:
        check_ready(call.offer, now)
        check_answerable(call.entry.card, call.job.request, call.job.stream)
        check_depth(call.job.terms.waiting_keys)
        limit = self._calls_per_caller
        if call.owner and limit and (n_calls := self._lives.n_owned(call.owner)) >= limit:
            raise QueueFull(f"{n_calls} of at most {limit} calls of this API key run or wait; try again later")
        if call.deadline <= now:
            raise DeadlinePassed("the call's time was over before it arrived")

    def _check_wait(self, call: QueuedCall, now: float) -> QueuedCall | None:
        """Returns the call that has to leave for this one to wait; None if there is room."""
        if not call.job.terms.waits:
            raise NoCapacity(f"every slot for {name_of(call.entry)} is busy")
        check_wait(call.entry, call.job.terms.waiting_keys)
        check_circle(call, self._lives.asks)
        return self._waiting.make_room(call, now)

    # For operators.

    def abort(self, key: str) -> int:
        """Refuses all calls that wait for a key, as Unavailable, and returns how many. Running ones go on."""
        calls = self._waiting.calls_of(key)
        for call in calls:
            self._lives.stop(call, Unavailable("the call was aborted by operator before it ran"))
        return len(calls)

    def abort_calls(self, is_meant: Callable[[Terms], bool]) -> int:
        """Cancels all calls whose terms match, running ones too; returns how many. New calls are accepted."""
        return self._lives.cancel_all(is_meant)

    def stats(self) -> DispatchStats:
        """Returns the numbers of all keys that are known."""
        now = self._clock()
        for entry in self._registry:
            self._waiting.queue_of(entry)
        bounds = self._waiting.bounds
        return DispatchStats(
            keys=tuple(key_stats(queue, self._waiting.oldest(queue), now) for queue in self._waiting),
            n_calls=len(self._lives),
            n_waiting=bounds.n_calls,
            n_waiting_bytes=bounds.n_bytes,
            retry_budget=self._lives.budget.left(now),
        )

    # The end.

    def shut_down(self) -> None:
        """Refuses new calls as ShuttingDown from now on. Calls that wait or run go on."""
        self._is_shutting_down = True

    def drain(self, timeout: float | None = None) -> bool:
        """Shuts down, and waits until every call has ended. Returns False if some have not after `timeout` seconds."""
        self.shut_down()
        return self._lives.wait_idle(timeout)

    def close(self) -> None:
        """Shuts down, and ends all calls as ShuttingDown; what runs is cancelled. Twice is harmless."""
        self.shut_down()
        self._lives.stop_all(ShuttingDown("the server is shutting down"))
        self._timetable.close()
