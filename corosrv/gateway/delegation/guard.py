"""Lets peers in by the secret that all replicas share, and believes nobody else what peers alone may say."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from typing import Any

from flask import g

from corosrv.base.errors import InvalidTrip, LoopDetected, Unauthorized
from corosrv.gateway.delegation.trip import (
    CALLER,
    COUNTS,
    ELAPSED,
    ENVIRON_OF,
    HOPS,
    PATH,
    TOKEN,
    DelegationStats,
    Trip,
    parse_trip,
    strip,
)
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import Flood, line

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
