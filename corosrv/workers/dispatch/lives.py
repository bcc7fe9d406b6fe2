"""Ends calls: well, by a failure, at their deadline, by a cancel; or requeues them for another attempt.

`may_retry` decides which failed calls are tried again, `pause` when, and `RetryBudget` bounds how many. Each call that
ended gets a line of log: what it asked, where it ran, how long it took, and how it ended.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from gevent.event import Event

from corosrv.base.errors import (
    CallCancelled,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotHandedOver,
    Unavailable,
    WorkerLost,
)
from corosrv.contracts.jobs.infer import InferOutputs
from corosrv.contracts.jobs.terms import Terms, TracePart
from corosrv.workers.dispatch.answers import CallRecords, choose
from corosrv.workers.dispatch.call import CallFollower, CallState, Outcomes, QueuedCall
from corosrv.workers.dispatch.estimates import outcome_of
from corosrv.workers.dispatch.timetable import Timetable
from corosrv.workers.dispatch.waiting import WaitingCalls

MAX_ATTEMPTS = 2  # that were handed over
MAX_REFUSALS = 5  # hand-overs of one call that may fail before anything of it has run
FIRST_PAUSE = 0.05  # seconds
PERIOD = 10  # seconds over which calls and retries are compared
SHARE = 0.1  # of the calls of a period, that retries may be
PER_SECOND = 3  # retries that are allowed beside


def may_retry(is_idempotent: bool, error: CorosrvError, n_attempts: int, has_sent: bool, is_batch: bool) -> bool:
    """Returns whether a call may run again that was handed over and then failed. `has_sent`: its client got some of it.

    A deadline, a cancel, a refusal and a handler that raised are answers; only a lost worker is not. `is_batch`: all
    calls of its batch have failed, which one of them may have caused; alone, it may go well.
    """
    is_open = isinstance(error, (WorkerLost, HandlerFailed) if is_batch else WorkerLost)
    return is_idempotent and is_open and n_attempts < MAX_ATTEMPTS and not has_sent


def pause(n_attempts: int, jitter: float) -> float:
    """Returns the seconds before the next attempt. `jitter`: a random number from 0 to 1."""
    return float(FIRST_PAUSE * 2 ** (n_attempts - 1) * jitter)


class RetryBudget:
    """Bounds the retries of a front to a share of its calls, so that they do not feed the overload that caused them.

    All calls that one worker was running when it died count as one: the permits of others bound how many of them run
    again at once. Counts by whole seconds of the time that is passed in, which never goes backwards.
    """

    def __init__(self) -> None:
        self._calls = [0] * PERIOD
        self._retries = [0] * PERIOD
        self._second = 0
        self._deaths: WeakKeyDictionary[object, float] = WeakKeyDictionary()  # when a worker was last lost

    def count_call(self, now: float) -> None:
        self._turn_to(now)
        self._calls[self._second % PERIOD] += 1

    def left(self, now: float) -> float:
        """Returns how many retries are allowed now."""
        self._turn_to(now)
        return SHARE * sum(self._calls) + PER_SECOND * PERIOD - sum(self._retries)

    def spend(self, now: float) -> bool:
        """Takes one retry from the budget; returns False if none is left."""
        if self.left(now) < 1:
            return False
        self._retries[self._second % PERIOD] += 1
        return True

    def spend_for_loss(self, now: float, worker: object, started_at: float) -> bool:
        """Takes what the retry of a call costs that its worker has lost; returns False if it is not left.

        `started_at`: when the worker got the call. Nothing if it got it before its last loss: it is the same one.
        """
        if started_at <= self._deaths.get(worker, -math.inf):
            return True
        if not self.spend(now):
            return False
        self._deaths[worker] = now
        return True

    def _turn_to(self, now: float) -> None:
        second = int(now)
        if second <= self._second:
            return
        for passed in range(max(self._second + 1, second - PERIOD + 1), second + 1):
            self._calls[passed % PERIOD] = self._retries[passed % PERIOD] = 0
        self._second = second


log = logging.getLogger("corosrv.calls")

_TEXT = (
    "call %(id)s of %(key)s ended: %(outcome)s, worker %(worker)s (%(incarnation)d), %(attempts)d attempts, "
    "%(queue_ms).1f ms queued, %(service_ms).1f ms served, %(total_ms).1f ms in all"
)


def log_call(call: QueuedCall, error: CorosrvError | None, now: float, as_json: bool) -> None:
    """Writes the line of a call that ends now. Calls that went well are for the debug level."""
    level = logging.DEBUG if error is None else logging.INFO
    if not log.isEnabledFor(level):
        return
    served = 0.0 if call.started_at is None else now - call.started_at
    members = {
        "id": call.job.terms.request_id,
        "key": call.key,
        "outcome": outcome_of(error),
        "worker": "-" if call.worker is None else call.worker.id,
        "incarnation": 0 if call.worker is None else call.worker.incarnation,
        "attempts": call.n_attempts,
        "queue_ms": round(1000 * call.waited, 1),
        "service_ms": round(1000 * served, 1),
        "total_ms": round(1000 * (now - call.arrived), 1),
    }
    text = _TEXT
    if call.trace is not None and call.trace.trace_id:
        members["trace"] = call.trace.trace_id
        text += ", trace %(trace)s"
    log.log(level, "%s", json.dumps({"event": "call_ended", **members}) if as_json else text % members)


def _end_trace(trace: TracePart, call: QueuedCall, error: CorosrvError | None, now: float) -> None:
    """Ends a call's part of its request's trace; it waited before its last attempt, or to its end."""
    trace.add_past("queue", now - call.arrived, call.waited)
    worker = "" if call.worker is None else call.worker.id
    attributes = {"corosrv.key": call.key, "corosrv.worker": worker, "corosrv.attempts": call.n_attempts}
    trace.end(attributes, "" if error is None else outcome_of(error))


_UNTOLD = (CallCancelled, DeadlinePassed, Unavailable, WorkerLost)  # ends that say nothing of what a handler does


class CallLives(Outcomes):
    """Owns the calls that have not ended. Each ends once, through `end`. Belongs to the hub's thread.

    `resume` is called with a call that is to wait for a permit once more.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        timetable: Timetable,
        waiting: WaitingCalls,
        jitter: Callable[[], float],
        logs_json: bool,
        resume: Callable[[QueuedCall], None],
        records: CallRecords,
    ) -> None:
        self.budget = RetryBudget()
        self.records = records
        self._clock = clock
        self._timetable = timetable
        self._waiting = waiting
        self._jitter = jitter
        self._logs_json = logs_json
        self._resume = resume
        self._calls: dict[QueuedCall, None] = {}  # in the order of their arrivals
        self.asks: dict[int, dict[QueuedCall, None]] = {}  # calls of handlers, by the hand-overs that make them
        self._n_owned: Counter[str] = Counter()  # by their owners
        self._is_idle = Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: QueuedCall) -> None:
        """Owns a call from now on, until its end or its deadline."""
        self._calls[call] = None
        if (trace := call.job.terms.trace) is not None:
            trace.name_model(call.entry.card.name)
            call.trace = trace.begin(f"call {call.entry.card.name}", {}, is_client=True)
        if call.job.terms.asker:
            self.asks.setdefault(call.job.terms.asker, {})[call] = None
        if call.owner:
            self._n_owned[call.owner] += 1
        self._is_idle.clear()
        if call.deadline != float("inf"):
            call.expiry = self._timetable.add(call.deadline, self.expire, call)

    def n_owned(self, owner: str) -> int:
        """Returns how many calls of an owner have not ended."""
        return self._n_owned[owner]

    def wait_idle(self, timeout: float | None) -> bool:
        """Waits until no call is left; returns False after `timeout` seconds."""
        return bool(self._is_idle.wait(timeout))

    # From outside.

    def cancel(self, call: QueuedCall) -> None:
        """Ends a call for its client's sake. Does nothing once it has ended."""
        self.stop(call, CallCancelled("the call was cancelled"))

    def cancel_all(self, is_meant: Callable[[Terms], bool]) -> int:
        """Ends the calls whose terms are meant, for an operator's sake, and returns how many."""
        calls = [call for call in self._calls if is_meant(call.job.terms)]
        for call in calls:
            self.stop(call, CallCancelled("the request was aborted by an operator of this server"))
        return len(calls)

    def expire(self, call: QueuedCall) -> None:
        """Ends a call whose time is over."""
        place = "while it ran" if call.state is CallState.RUNNING else "while it waited"
        self.stop(call, DeadlinePassed(f"the call's time was over {place}"))

    def stop(self, call: QueuedCall, error: CorosrvError) -> None:
        """Ends a call wherever it is: it leaves its queue, and a worker that has it is told.

        Unavailable promises that nothing has run. A call that may have run ends as its last attempt did instead.
        """
        if call.failure is not None and isinstance(error, Unavailable):
            error = call.failure
        if call.state is CallState.WAITING:
            self._waiting.leave(call)
            call.waited += self._clock() - call.waits_since
        elif call.state is CallState.RUNNING:
            assert call.attempt is not None
            call.attempt.abandon(call.item, isinstance(error, DeadlinePassed))
        elif call.state is CallState.ENDED:
            return
        self._end(call, error)

    def stop_all(self, error: Unavailable) -> None:
        """Ends all calls; those that a worker has as lost, because they may have run."""
        for call in list(self._calls):
            is_running = call.state is CallState.RUNNING
            self.stop(call, WorkerLost(f"{error}, and the call may have run") if is_running else error)

    # From workers.

    def pass_on(self, call: QueuedCall, outputs: InferOutputs, n_bytes: int) -> None:
        if call.answer is None:
            call.has_sent = True
            if (names := call.job.request.outputs) is not None:
                outputs = choose(call.entry.card, outputs, names, True)
            if call.keeper is not None:
                call.keeper.add(outputs)
            call.reader.add_item(outputs, n_bytes)
        elif (error := call.answer.add(outputs)) is not None:
            self.stop(call, error)

    def complete(self, call: QueuedCall) -> None:
        if call.answer is not None:
            try:
                outputs = call.answer.result(call.job.request.outputs)
            except CorosrvError as error:
                self._end(call, error)
                return
            if call.keeper is not None:
                call.keeper.add(outputs)
            call.reader.add(outputs, 0)
        self._end(call, None)

    def fail(self, call: QueuedCall, error: CorosrvError, is_batch: bool) -> None:
        if isinstance(error, NotHandedOver):
            self._return(call, error)
        elif not self._try_again(call, error, is_batch):
            self._end(call, error)

    def finish_attempt(self, attempt: CallFollower) -> None:
        attempt.running_of.discard(attempt.number)
        # A worker that was lost, and one that refused, say nothing of how long calls take.
        is_measured = not isinstance(attempt.error, (WorkerLost, NotHandedOver))
        now = self._clock()
        for account in attempt.accounts:
            attempt.entry.ledger.stop(account, 1 / attempt.size, now)
        attempt.traffic.count_finish(
            attempt.size, attempt.started_at, now, is_measured, attempt.is_abandoned, attempt.trace
        )
        if is_measured:
            attempt.entry.quarantine.count_well(attempt.size, now)

    # Attempts.

    def _return(self, call: QueuedCall, error: NotHandedOver) -> None:
        """Lets a call wait again of which nothing has run, with its former order."""
        call.n_attempts -= 1
        call.n_refusals += 1
        if call.n_refusals > MAX_REFUSALS:
            self._end(call, call.failure or error)
            return
        call.traffic.retries["not_handed_over"] += 1
        call.avoided = call.worker
        if call.n_refusals == 1:
            self._resume(call)
        else:  # by two: whatever it is, it may pass
            self._pause(call, self._clock() + pause(call.n_refusals - 1, self._jitter()))

    def _try_again(self, call: QueuedCall, error: CorosrvError, is_batch: bool) -> bool:
        """Lets a call run again after a pause, if it may; a batch that failed is tried as single calls."""
        now = self._clock()
        if not may_retry(call.entry.card.is_idempotent, error, call.n_attempts, call.has_sent, is_batch):
            return False
        resumes_at = now + pause(call.n_attempts, self._jitter())
        if resumes_at >= call.deadline or not self._spend_retry(call, error, now):
            return False
        call.traffic.retries["batch_failed" if is_batch else "worker_lost"] += 1
        call.is_single = call.is_single or is_batch
        call.avoided = call.worker
        call.failure = error
        self._pause(call, resumes_at)
        return True

    def _spend_retry(self, call: QueuedCall, error: CorosrvError, now: float) -> bool:
        if not isinstance(error, WorkerLost):
            return self.budget.spend(now)
        assert call.worker is not None
        assert call.started_at is not None
        return self.budget.spend_for_loss(now, call.worker, call.started_at)

    def _pause(self, call: QueuedCall, resumes_at: float) -> None:
        call.enter(CallState.PAUSED)
        call.appointment = self._timetable.add(resumes_at, self._resume, call)

    def _end(self, call: QueuedCall, error: CorosrvError | None) -> None:
        now = self._clock()
        call.entry.ledger.leave(call.account, call.state is CallState.WAITING)
        call.enter(CallState.ENDED)
        if call.expiry is not None or call.appointment is not None:
            self._timetable.cancel(call.expiry)
            self._timetable.cancel(call.appointment)
        self._calls.pop(call, None)
        if (asks := self.asks.get(call.job.terms.asker)) is not None:
            asks.pop(call, None)
            if not asks:
                del self.asks[call.job.terms.asker]
        if call.owner:
            self._n_owned[call.owner] -= 1
            if not self._n_owned[call.owner]:
                del self._n_owned[call.owner]
        call.traffic.count_end(error)
        if call.is_trial:
            call.entry.quarantine.end_trial(call.n_attempts > 0 and not isinstance(error, _UNTOLD))
        log_call(call, error, now, self._logs_json)
        if call.trace is not None:
            _end_trace(call.trace, call, error, now)
        if call.keeper is not None:
            call.keeper.end(error, now, has_run=call.n_attempts > 0)
        call.reader.end(error)
        if not self._calls:
            self._is_idle.set()
