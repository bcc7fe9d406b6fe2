"""Webhooks: which events of a prediction are sent, how often, when they are retried, and the POST itself."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException

import gevent
import urllib3
from gevent.event import Event
from gevent.monkey import is_module_patched
from gevent.threadpool import ThreadPool

from corosrv.base import __version__
from corosrv.base.errors import DestinationRefused, RedirectRefused
from corosrv.base.outgoing import KEEPING_METHOD, Destinations, Redirects, WebhookSigner, origin, retry_after
from corosrv.base.waits import call_in_thread
from corosrv.dialects.predictions.files import encode
from corosrv.dialects.predictions.prediction import Change, Prediction

log = logging.getLogger("corosrv.predictions")

TRY_SECONDS = 30.0
# At once, to one receiver; the next ones wait within their own time, so that a dead receiver keeps others' way free.
CONNECTIONS = 64
_THREADS = 32  # where posts need some
_LONG = 1 << 20  # bytes of a body that is signed in a thread
_LAST_SECONDS = 1.0  # that threads get to end
_REPEATED = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one try. `status` is None if no answer came; `reason` says why."""

    status: int | None
    reason: str = ""
    retry_after: float = 0.0  # seconds that the receiver asks to wait before the next try
    is_refused: bool = False  # by this server: webhooks may not go to that destination

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_worth_repeating(self) -> bool:
        return not self.is_refused and (self.status is None or self.status in _REPEATED)


class Poster:
    """Posts JSON; other greenlets run meanwhile, also where sockets are not monkey-patched. Owns its connections."""

    def __init__(
        self, token: str = "", destinations: Destinations | None = None, signer: WebhookSigner | None = None
    ) -> None:
        self._token = token
        self._signer = signer or WebhookSigner("")
        self.destinations = destinations or Destinations()
        self._http = urllib3.PoolManager(num_pools=256, maxsize=CONNECTIONS, block=True, retries=False)
        self._threads: ThreadPool | None = None

    def post(
        self,
        url: str,
        body: Sequence[bytes],
        headers: Mapping[str, str],
        *,
        id: str = "",
        to_loopback: bool = False,
        seconds: float = TRY_SECONDS,
    ) -> Outcome:
        """Posts a body that is in pieces. Waits, `seconds` at most.

        `id`: of the message, the same at each of its tries; `to_loopback`: the URL may name this machine.
        """
        now, is_long = int(time.time()), sum(map(len, body)) > _LONG
        sign = self._signer.headers
        headers = {**headers, **(call_in_thread(sign, id, now, body) if is_long else sign(id, now, body))}
        if is_module_patched("socket"):
            with gevent.Timeout(seconds, False):
                return self._post(url, body, headers, to_loopback, seconds)
            return Outcome(None, f"no answer within {seconds:g} s")
        if self._threads is None:
            self._threads = ThreadPool(_THREADS)
        outcome: Outcome = self._threads.apply(self._post, (url, body, headers, to_loopback, seconds))
        return outcome

    def _post(
        self, url: str, body: Sequence[bytes], headers: Mapping[str, str], to_loopback: bool, seconds: float
    ) -> Outcome:
        deadline = time.monotonic() + seconds
        redirects = Redirects(url, KEEPING_METHOD, leaves_site=False)
        fields = self._headers(headers, sum(map(len, body)))
        try:
            while True:
                addresses = self._look_up(redirects.url, to_loopback)
                outcome, location = self._ask(redirects.url, addresses, body, fields, deadline - time.monotonic())
                if not redirects.follow(outcome.status, location):
                    return outcome
        except RedirectRefused as error:
            return replace(outcome, reason=f"status {outcome.status}: {error}")
        except DestinationRefused as error:
            return Outcome(None, str(error), is_refused=True)
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}")

    def _look_up(self, url: str, to_loopback: bool) -> list[str]:
        _, host, port = origin(url)
        assert host is not None, "URLs of webhooks have hosts"
        return self.destinations.look_up(host, port or 0, to_loopback=to_loopback)

    def _headers(self, headers: Mapping[str, str], n_bytes: int) -> dict[str, str]:
        own = {
            "Content-Type": "application/json",
            "User-Agent": f"corosrv/{__version__}",
            "Content-Length": str(n_bytes),
            # A kept connection may be closed by the receiver just now, and most events are tried once.
            "Connection": "close",
        }
        if self._token:
            own["Authorization"] = f"Bearer {self._token}"
        return {**headers, **own}

    def _ask(
        self, url: str, addresses: Sequence[str], body: Sequence[bytes], headers: Mapping[str, str], seconds: float
    ) -> tuple[Outcome, str | None]:
        """Posts to the first address that accepts a connection. Returns the outcome and the Location of a redirect."""
        if seconds <= 0:
            return Outcome(None, "no time was left"), None
        *earlier, last = addresses
        for address in earlier:
            try:
                return self._ask_at(address, url, body, headers, seconds)
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
                continue  # a host with several addresses need not be there at each
        return self._ask_at(last, url, body, headers, seconds)

    def _ask_at(
        self, address: str, url: str, body: Sequence[bytes], headers: Mapping[str, str], seconds: float
    ) -> tuple[Outcome, str | None]:
        parts = urllib3.util.parse_url(url)
        scheme, host, port = origin(url)
        # The address was checked: the connection goes there, and the name is for the receiver and its certificate.
        by_name = {"server_hostname": host, "assert_hostname": host} if scheme == "https" else None
        pool = self._http.connection_from_host(address, port, scheme, by_name)
        answer = pool.urlopen(
            "POST",
            parts.request_uri,
            body=body,
            headers={**headers, "Host": parts.netloc or ""},
            timeout=urllib3.Timeout(total=seconds),
            pool_timeout=seconds,  # type: ignore[arg-type]  # it may be a fraction
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            pause = retry_after(answer.headers.get("Retry-After"), int(time.time()))
            return Outcome(answer.status, f"status {answer.status}", pause), answer.headers.get("Location")
        finally:
            answer.close()  # nobody reads what it says
            answer.release_conn()

    def close(self) -> None:
        """Closes all connections and ends the threads. Waits for them a second at most. Later calls do nothing."""
        self._http.clear()
        threads, self._threads = self._threads, None
        if threads is not None:
            with gevent.Timeout(_LAST_SECONDS, False):
                threads.kill()  # each ends with the post that it is at


def message_id() -> str:
    """Makes the id of a message, by which its receiver knows it when it is sent again."""
    return f"msg_{secrets.token_hex(16)}"


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


class WebhookPlan:
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
        signer: WebhookSigner | None = None,
    ) -> None:
        self.counts = Deliveries()
        self.is_hurried = Event()  # nothing is tried again any more
        self.n_waiting = 0
        self.interval = interval
        self.first_delay = first_delay
        self.destinations = destinations or Destinations()
        self.poster = Poster(token, self.destinations, signer)
        self._senders: set[gevent.Greenlet] = set()

    def attach(self, prediction: Prediction, receiver: Receiver) -> None:
        """Sends a prediction's later events to `receiver`."""
        if receiver.events:
            sender = gevent.spawn(_Sender(self, prediction, receiver).run)
            self._senders.add(sender)
            sender.rawlink(self._senders.discard)

    def send(self, url: str, body: bytes, name: str) -> None:
        """Posts one message, and tries again as for the end of a prediction. Returns at once. `name`: for the log."""
        sender = gevent.spawn(self._send, url, body, name)
        self._senders.add(sender)
        sender.rawlink(self._senders.discard)

    def _send(self, url: str, body: bytes, name: str) -> None:
        id = message_id()
        self.count(self.insist(lambda: self.poster.post(url, [body], {}, id=id, to_loopback=True)), name)

    def insist(self, post: Callable[[], Outcome]) -> Outcome:
        """Posts, and tries again as long as `delay` allows it; returns the last outcome. Waits."""
        outcome, n_tries = post(), 1
        while not outcome.is_delivered and (wait := delay(n_tries, outcome, self.first_delay)) is not None:
            if not self._may_go_on_after(wait):
                break
            self.counts.retried += 1
            outcome = post()
            n_tries += 1
        return outcome

    def _may_go_on_after(self, seconds: float) -> bool:
        if self.n_waiting >= MAX_WAITING:
            return False
        self.n_waiting += 1
        try:
            return not self.is_hurried.wait(seconds)
        finally:
            self.n_waiting -= 1

    def count(self, outcome: Outcome, name: str) -> None:
        """Counts a message that was delivered or given up; the log tells of the latter."""
        if outcome.is_delivered:
            self.counts.delivered += 1
            return
        self.counts.failed += 1
        log.warning("%s was not delivered: %s", name, outcome.reason)

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
        self._plan = WebhookPlan(receiver.events, webhooks.interval)
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
        id = message_id()
        if change is Change.COMPLETED:
            outcome = self._webhooks.insist(lambda: self._post(id, body))
        else:
            outcome = self._post(id, body)
        self._webhooks.count(outcome, f"prediction {self._prediction.id}: webhook {change.value}")

    def _post(self, id: str, body: list[bytes] | None) -> Outcome:
        body = self._prediction.encoded(with_input=True) if body is None else body
        receiver = self._receiver
        return self._webhooks.poster.post(receiver.url, body, receiver.headers, id=id, to_loopback=receiver.to_loopback)
