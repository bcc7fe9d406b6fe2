"""Asks each peer every few seconds what it serves, and ends the calls of one that has fallen silent."""

from __future__ import annotations

import logging
import random
import time

import gevent

from corosrv.base.errors import CorosrvError, WorkerLost
from corosrv.fleet.upstreams.failures import UpstreamDown
from corosrv.gateway.delegation.peer import Peer
from corosrv.gateway.delegation.roster import PeerState, Roster

log = logging.getLogger("corosrv.delegation")

INTERVAL = 5.0  # seconds between two questions to a peer that is ready
FAST_INTERVAL = 1.0  # to one that is not known yet, or cannot be reached
_UNREACHED = frozenset({PeerState.ASKING, PeerState.DOWN, PeerState.STALE})


class PeerAsker:
    """Asks all peers, each in a greenlet of its own."""

    def __init__(self, roster: Roster, peers: tuple[Peer, ...], token: str) -> None:
        self._roster = roster
        self._peers = peers
        self._token = token
        self._greenlets: list[gevent.Greenlet] = []

    def start(self) -> None:
        """Begins to ask. Twice is harmless."""
        if not self._greenlets:
            self._greenlets = [gevent.spawn(self._ask_on, peer) for peer in self._peers]

    def close(self) -> None:
        """Ends it. Never waits; twice is harmless."""
        greenlets, self._greenlets = self._greenlets, []
        gevent.killall(greenlets, block=False)

    def _ask_on(self, peer: Peer) -> None:
        last_words = ""
        while True:
            try:
                last_words = self._ask(peer, last_words)
            except Exception:
                log.exception("peer %s could not be asked by a bug", peer.record.url)
            is_unreached = peer.record.state(time.monotonic()) in _UNREACHED
            gevent.sleep((FAST_INTERVAL if is_unreached else INTERVAL) * random.uniform(0.9, 1.0))

    def _ask(self, peer: Peer, last_words: str) -> str:
        """Asks once. Returns what was last logged of the peer, which is said once and not every time."""
        record = peer.record
        try:
            announcement = peer.ask(self._token)
        except UpstreamDown as error:
            record.note_lost(str(error))
        except CorosrvError as error:
            record.note_failure(str(error))
        else:
            self._roster.hear(record, announcement, time.monotonic())
        state = record.state(time.monotonic())
        if state is PeerState.STALE:
            # As with a worker whose lease is over: it is stopped, or cannot be reached, whatever its sockets say.
            peer.abort(WorkerLost(f"the replica {record.id} does not answer any more"))
        words = f"{state.value}: {record.last_answer}"
        if words != last_words:
            level = logging.INFO if state is PeerState.READY else logging.WARNING
            name = record.id or "of unknown id"
            log.log(level, "peer %s (%s) is %s", record.url, name, words)
        return words
