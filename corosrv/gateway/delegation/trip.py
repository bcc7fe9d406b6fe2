"""Follows a request from replica to replica in its headers, so that it visits none of them twice.

Peers are let in by the secret that all replicas share, and nobody else is believed what peers alone may say. What
became of requests that this server could not serve is counted here, too.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flask import g
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import InvalidTrip, LoopDetected, Unauthorized
from corosrv.contracts.jobs.infer import AnswerHead, Headers
from corosrv.contracts.settings.fleet import REPLICA_ID
from corosrv.gateway.forwarding.headers import request_headers
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import Flood, line
from corosrv.web.keys import PEER_CALLER


class Result(str, Enum):
    """Results of a request that this server could not serve."""

    ANSWERED = "answered"  # by a peer
    REFUSED = "refused"  # by each peer that was asked: they could not serve it either
    LOST = "lost"  # a peer had it and did not answer, or not to the end
    CANCELLED = "cancelled"  # its client left
    NO_PEER = "no_peer"  # none serves it that has not seen it
    FULL = "full"  # peers answer delegate_max requests already
    HOP_LIMIT = "hop_limit"  # it had come from too far


class DelegationStats:
    """Holds the counts."""

    def __init__(self) -> None:
        self.results: Counter[Result] = Counter()
        self.n_loops = 0  # requests that came back
        self.in_flight = 0


class DelegationCollector(Collector):
    """Reads the counts at each scrape."""

    def __init__(self, stats: DelegationStats, count_ready: Callable[[], int]) -> None:
        """`count_ready`: tells how many peers are ready."""
        self._stats = stats
        self._count_ready = count_ready

    def collect(self) -> Iterable[Metric]:
        delegated = CounterMetricFamily(
            "corosrv_delegated", "Requests that could not be served here, by what became of them", labels=["result"]
        )
        for result in Result:
            delegated.add_metric([result.value], self._stats.results[result])
        yield delegated
        yield CounterMetricFamily("corosrv_delegation_loops", "Requests refused as seen before", self._stats.n_loops)
        yield GaugeMetricFamily("corosrv_delegated_in_flight", "Requests that peers answer", self._stats.in_flight)
        yield GaugeMetricFamily("corosrv_peers_ready", "Peers that may be asked", self._count_ready())


HOPS = "X-Corosrv-Hops"
PATH = "X-Corosrv-Path"
HOP_LIMIT = 2  # times that a request may go on to another replica
MAX_VISITS = 32  # replicas in a path

_MAX_HOPS_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Trip:
    """Says how often a request has gone on to another replica, and which ones have seen it.

    Those are more than the hops where one of them could not answer, and another was asked.
    """

    n_hops: int = 0
    visited: tuple[str, ...] = ()

    @property
    def is_at_limit(self) -> bool:
        """Returns True if the request must be answered where it is."""
        return self.n_hops >= HOP_LIMIT or len(self.visited) >= MAX_VISITS

    def check(self, own_id: str) -> None:
        """Raises LoopDetected if this replica has seen the request before."""
        if own_id in self.visited:
            raise LoopDetected(f"the request has passed the replica {own_id} before: {' > '.join(self.visited)}")

    def visit(self, replicas: Iterable[str]) -> Trip:
        """Returns the trip of a request that these replicas have seen as well."""
        return Trip(self.n_hops, tuple(dict.fromkeys((*self.visited, *replicas))))

    def onward(self) -> tuple[tuple[str, str], ...]:
        """Returns the headers with which the request goes on to the next replica."""
        return ((HOPS, str(self.n_hops + 1)), (PATH, path_text(self.visited)))


def parse_trip(hops: str | None, path: str | None) -> Trip:
    """Reads the headers of a request from a peer. Raises InvalidTrip, which names the header."""
    digits = (hops or "0").strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_HOPS_DIGITS):
        raise InvalidTrip(f"{HOPS}: must be a number of replicas, not {digits[:40]!r}", HOPS)
    visited = parse_path(path or "")
    return Trip(max(int(digits), 1 if visited else 0), visited)


def parse_path(text: str) -> tuple[str, ...]:
    """Reads the ids of replicas, separated by commas. Raises InvalidTrip."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if len(names) > MAX_VISITS or not all(map(REPLICA_ID.fullmatch, names)):
        raise InvalidTrip(f"{PATH}: must be up to {MAX_VISITS} ids of replicas, separated by commas", PATH)
    return names


def path_text(replicas: Iterable[str]) -> str:
    """Writes the ids of replicas as X-Corosrv-Path has them."""
    return ",".join(replicas)


TOKEN = "X-Corosrv-Token"
CALLER = PEER_CALLER  # the name made from the client's key; never the key
COUNTS = "X-Corosrv-Counts"  # 1: the key has limits that whoever answers has to keep, as it alone knows the tokens
ELAPSED = "X-Corosrv-Elapsed-Ms"  # milliseconds since the request came: its time limit counts from there
SERVED_BY = "X-Corosrv-Served-By"
ENVIRON_OF = {name: f"HTTP_{name.upper().replace('-', '_')}" for name in (TOKEN, HOPS, PATH, CALLER, COUNTS, ELAPSED)}

# Beside those that go on to upstreams: peers take bodies as clients send them, compressed or with a binary tail.
_ALSO = ("Content-Encoding", "Inference-Header-Content-Length", "Prefer")


def strip(environ: dict[str, Any]) -> None:
    """Removes what peers alone may say from a client's request."""
    for name in ENVIRON_OF.values():
        environ.pop(name, None)


def onward_headers(
    environ: Mapping[str, Any], request_id: str, caller: str, token: str, *, passes_keys: bool, counts: bool = False
) -> Headers:
    """Returns the headers of a request to a peer, but for those of the trip.

    `passes_keys`: the client's key is not for this server, so that it may be for an upstream of the peer. `counts`: the
    peer has to count the answer for the caller's key.
    """
    also = tuple((name, environ[field]) for name in _ALSO if (field := _field(name)) in environ)
    peers = ((TOKEN, token), (CALLER, caller)) if caller else ((TOKEN, token),)
    if counts:
        peers = (*peers, (COUNTS, "1"))
    return (*request_headers(environ, request_id, passes_keys=passes_keys, passes_idempotency=True), *also, *peers)


def _field(name: str) -> str:
    return f"HTTP_{name.upper().replace('-', '_')}"


def header_of(head: AnswerHead, name: str) -> str:
    """Returns a header of an answer; an empty text if it has none."""
    return next((value for field, value in head.headers if field.lower() == name.lower()), "")


log = logging.getLogger("corosrv.delegation")
_refused = Flood(log, "%d requests had a wrong peer token")
_looped = Flood(log, "%d more requests came back from peers")

MAX_ELAPSED = 86_400.0  # seconds

_TRIP = "corosrv_trip"
_VISITED = "corosrv_visited"
_CALLER = re.compile(r"[0-9a-f]{1,128}")


class PeerGuard:
    """Decides for each request whether a peer has sent it."""

    def __init__(self, own_id: str, token: str, stats: DelegationStats) -> None:
        self._own_id = own_id
        self._digest = _digest(token.encode())
        self._stats = stats

    def admit(self, environ: dict[str, Any]) -> str | None:
        """Returns the caller that a peer has authenticated, for a request that a peer sent; otherwise None.

        Raises Unauthorized for a wrong token, LoopDetected for a request that was here before, and InvalidTrip for
        headers that no replica writes. From a client's request it removes the headers that are for peers.
        """
        token = environ.get(ENVIRON_OF[TOKEN])
        if token is None:
            strip(environ)
            return None
        if not hmac.compare_digest(_digest(token.encode("latin-1", "replace")), self._digest):
            strip(environ)
            _refused.count(lambda: log.warning("a request had a wrong peer token: is COROSRV_PEER_TOKEN the same?"))
            raise Unauthorized("this peer token is not known here")
        trip = parse_trip(environ.get(ENVIRON_OF[HOPS]), environ.get(ENVIRON_OF[PATH]))
        notes = current(g)
        setattr(notes, _TRIP, trip)
        self._check(trip, environ)
        notes.corosrv_began = time.monotonic() - _elapsed(environ)
        caller: str = environ.get(ENVIRON_OF[CALLER], "")
        if caller and not _CALLER.fullmatch(caller):
            raise InvalidTrip(f"{CALLER}: must be a name made from a key", CALLER)
        notes.corosrv_counts = ENVIRON_OF[COUNTS] in environ
        return caller

    def _check(self, trip: Trip, environ: dict[str, Any]) -> None:
        try:
            trip.check(self._own_id)
        except LoopDetected as error:
            words = f"{environ.get('PATH_INFO', '')}: {error}"
            self._stats.n_loops += 1
            _looped.count(lambda: log.warning("%s", line(words)))
            raise


def current_trip() -> Trip | None:
    """Returns the trip of the request at hand; None unless a peer has sent it."""
    trip: Trip | None = current(g).get(_TRIP)
    return trip


def note_visited(trip: Trip) -> None:
    """Records which replicas have seen the request at hand by now."""
    setattr(current(g), _VISITED, trip)


def visited_trip() -> Trip:
    """Returns which replicas have seen the request at hand, as far as this one knows."""
    trip: Trip = current(g).get(_VISITED) or current_trip() or Trip()
    return trip


def _elapsed(environ: dict[str, Any]) -> float:
    """Returns the seconds that the request was on its way."""
    text = environ.get(ENVIRON_OF[ELAPSED], "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidTrip(f"{ELAPSED}: must be a number of milliseconds, not {text[:40]!r}", ELAPSED)
    return min(int(text) / 1000, MAX_ELAPSED)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
