"""Webhooks: which events of a prediction are sent, how often, and when they are retried."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import gevent
from gevent.event import Event

from corosrv.base.outgoing import Destinations
from corosrv.dialects.predictions.delivery import Outcome, Poster
from corosrv.dialects.predictions.encoding import encode
from corosrv.dialects.predictions.prediction import Change, Prediction

log = logging.getLogger("corosrv.predictions")

RETRIES = 12
FIRST_DELAY = 0.2  # seconds; doubled each time
_MAX_DOUBLINGS = 9
# Deliveries that may wait for a retry, each of which keeps its prediction. Beyond that nothing is retried.
MAX_WAITING = 1000


def delay(n_tries: int, outcome: Outcome, first: float = FIRST_DELAY) -> float | None:
    """Returns the seconds until the next try after `n_tries` failed ones; None if there is no next one."""
    if not outcome.is_worth_repeating or n_tries > RETRIES:
        return None
    return max(first * 2.0 ** min(n_tries - 1, _MAX_DOUBLINGS), outcome.retry_after)


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of a prediction's webhooks: URL, wanted events and header fields."""

    url: str
    events: frozenset[Change] = frozenset(Change)
    headers: Mapping[str, str] = field(default_factory=dict)
    to_loopback: bool = False  # it may be on this machine


class Plan:
    """Decides which event is sent next. Times are passed in; nothing waits.

    Start and completed go at once, output and logs together once per window at most: later ones become one
    event at the end of the window, unless completed comes first.
    """

    def __init__(self, events: frozenset[Change], interval: float) -> None:
        self._events = events
        self._interval = interval
        self._pending: set[Change] = set()
        self._window_ends = float("-inf")
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """True if every event was sent and no more will come."""
        return self._has_ended and not self._pending

    def add(self, change: Change) -> bool:
        """Records a change; returns whether the answer of `next_event` may have changed."""
        is_news = change is Change.COMPLETED or (change in self._events and change not in self._pending)
        if change is Change.COMPLETED:
            self._has_ended = True
        if change in self._events:
            self._pending.add(change)
        return is_news

    def next_event(self, now: float) -> Change | float | None:
        """Returns the event to send now, and counts it as sent; the seconds until the next one; or None."""
        if Change.START in self._pending:
            self._pending.discard(Change.START)
            return Change.START
        if Change.COMPLETED in self._pending:
            self._pending.clear()
            return Change.COMPLETED
        if not self._pending:
            return None
        if now < self._window_ends:
            return self._window_ends - now
        self._window_ends = now + self._interval
        merged = Change.OUTPUT if Change.OUTPUT in self._pending else Change.LOGS
        self._pending.clear()
        return merged


@dataclass(slots=True)
class Deliveries:
    """Counts of events that were delivered, given up and tried again."""

    delivered: int = 0
    failed: int = 0
    retried: int = 0


class Webhooks:
    """Sends the events of all predictions, each through a greenlet of its own. Owns these and the connections."""

    def __init__(
        self,
        interval: float,
        token: str = "",
        first_delay: float = FIRST_DELAY,
        destinations: Destinations | None = None,
    ) -> None:
        self.counts = Deliveries()
        self.is_hurried = Event()  # nothing is tried again any more
        self.n_waiting = 0
        self.interval = interval
        self.first_delay = first_delay
        self.destinations = destinations or Destinations()
        self.poster = Poster(token, self.destinations)
        self._senders: set[gevent.Greenlet] = set()

    def attach(self, prediction: Prediction, receiver: Receiver) -> None:
        """Sends a prediction's later events to `receiver`."""
        if receiver.events:
            sender = gevent.spawn(_Sender(self, prediction, receiver).run)
            self._senders.add(sender)
            sender.rawlink(self._senders.discard)

    def flush(self, timeout: float) -> bool:
        """Waits until every event was delivered or given up; returns False if that takes longer."""
        senders = list(self._senders)
        return len(gevent.joinall(senders, timeout)) == len(senders)

    def hurry(self) -> None:
        """Gives up every event that was tried once."""
        self.is_hurried.set()

    def close(self) -> None:
        """Gives up events that are not delivered yet. Later calls do nothing."""
        gevent.killall(list(self._senders), block=True, timeout=1)
        self.poster.close()


class _Sender:
    """Sends one prediction's events in their order; while one is on its way, those behind it become one."""

    def __init__(self, webhooks: Webhooks, prediction: Prediction, receiver: Receiver) -> None:
        self._webhooks = webhooks
        self._prediction = prediction
        self._receiver = receiver
        self._plan = Plan(receiver.events, webhooks.interval)
        self._news = Event()
        self._start: list[bytes] | None = None
        prediction.listen(self._on_change)

    def _on_change(self, change: Change) -> None:
        if self._plan.add(change):
            self._news.set()
        # The one body that is made beforehand: a start that says `succeeded` would be taken for the end.
        if change is Change.START and change in self._receiver.events:
            self._start = encode(self._prediction.view(with_input=True))

    def run(self) -> None:
        while not self._plan.is_over:
            self._news.clear()
            next_event = self._plan.next_event(time.monotonic())
            if isinstance(next_event, Change):
                self._send(next_event)
            else:
                self._news.wait(next_event)

    def _send(self, change: Change) -> None:
        body, self._start = self._start, None
        outcome = self._post(body)
        if change is Change.COMPLETED:
            outcome = self._insist(outcome)
        self._count(change, outcome)

    def _post(self, body: list[bytes] | None = None) -> Outcome:
        body = self._prediction.encoded(with_input=True) if body is None else body
        receiver = self._receiver
        return self._webhooks.poster.post(receiver.url, body, receiver.headers, to_loopback=receiver.to_loopback)

    def _insist(self, outcome: Outcome) -> Outcome:
        """Retries as long as `delay` allows it, and returns the last outcome."""
        n_tries = 1
        while not outcome.is_delivered and (wait := delay(n_tries, outcome, self._webhooks.first_delay)) is not None:
            if not self._may_go_on_after(wait):
                break
            self._webhooks.counts.retried += 1
            outcome = self._post()
            n_tries += 1
        return outcome

    def _may_go_on_after(self, seconds: float) -> bool:
        webhooks = self._webhooks
        if webhooks.n_waiting >= MAX_WAITING:
            return False
        webhooks.n_waiting += 1
        try:
            return not webhooks.is_hurried.wait(seconds)
        finally:
            webhooks.n_waiting -= 1

    def _count(self, change: Change, outcome: Outcome) -> None:
        if outcome.is_delivered:
            self._webhooks.counts.delivered += 1
            return
        self._webhooks.counts.failed += 1
        log.warning(
            "prediction %s: webhook %s was not delivered: %s", self._prediction.id, change.value, outcome.reason
        )
