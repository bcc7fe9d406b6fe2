"""Keeps what is known of each peer, and chooses the one that gets a request. Nothing waits; the time is passed in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

from corosrv.fleet.upstreams.policies import score
from corosrv.gateway.delegation.announcement import Announcement, Offers
from corosrv.gateway.delegation.targets import PeerTarget

STALE_AFTER = 15.0  # seconds since a peer last announced something
MAX_REFUSED = 1000  # targets that are remembered as refused by one peer


class PeerState(str, Enum):
    """States of a peer, as they follow from its answers."""

    ASKING = "asking"  # it has announced nothing yet
    READY = "ready"
    DOWN = "down"  # no connection to it: it gets nothing until it announces something again
    STALE = "stale"  # it has announced nothing for STALE_AFTER seconds
    REFUSED = "refused"  # it is this server itself, or another peer, or not who it should be


class PeerRecord:
    """Remembers one peer: what it serves, and when it last said so."""

    def __init__(self, url: str, expected_id: str = "", *, is_found: bool = False) -> None:
        """`expected_id`: the id that the operator says it has; empty: any. `is_found`: through Redis, unnamed."""
        self.url = url
        self.expected_id = expected_id
        self.is_found = is_found
        self.offers: Offers | None = None
        self.heard_at = 0.0
        self.last_answer = "not asked yet"
        self.in_flight = 0
        self.turn = 0  # the number of the last request that it got
        self._is_down = False
        self._refusal = ""
        self._refused_targets: dict[str, None] = {}  # since its last announcement, the oldest first

    @property
    def id(self) -> str:
        """The id that it has announced, or that it should have; empty: unknown."""
        return self.expected_id if self.offers is None else self.offers.replica

    def state(self, now: float) -> PeerState:
        """Returns its state; `now`: of time.monotonic()."""
        if self._refusal:
            return PeerState.REFUSED
        if self.offers is None:
            return PeerState.ASKING
        if now - self.heard_at > STALE_AFTER:
            return PeerState.STALE
        return PeerState.DOWN if self._is_down else PeerState.READY

    def note_announcement(self, announcement: Announcement, now: float) -> None:
        """Replaces what it has announced before."""
        self.offers = Offers(announcement)
        self.heard_at = now
        self.last_answer = "it announced what it serves"
        self._is_down = False
        self._refusal = ""
        self._refused_targets.clear()

    def note_failure(self, words: str) -> None:
        """Records that it did not announce anything; what it has announced holds until it is stale."""
        self.last_answer = words

    def note_lost(self, words: str) -> None:
        """Records that no connection could be had: it gets no request before its next announcement."""
        self._is_down = True
        self.last_answer = words

    def refuse(self, words: str) -> None:
        """Sends it no requests until it announces something else."""
        self._refusal = words
        self.last_answer = words
        self.offers = None

    def note_refused(self, target: PeerTarget) -> None:
        """Records that it does not serve, for now, what it has announced: until its next one it is asked last."""
        if len(self._refused_targets) >= MAX_REFUSED:
            del self._refused_targets[next(iter(self._refused_targets))]
        self._refused_targets[target.key] = None

    def has_refused(self, target: PeerTarget) -> bool:
        return target.key in self._refused_targets


class Roster:
    """Knows all peers: those of the settings, and those that were found through Redis."""

    def __init__(self, own_id: str, peers: Sequence[PeerRecord]) -> None:
        self.own_id = own_id
        self.peers = tuple(peers)
        self._n_turns = 0

    def add(self, peer: PeerRecord) -> None:
        self.peers = (*self.peers, peer)

    def remove(self, peer: PeerRecord) -> None:
        """Forgets a peer, which gets no requests from now on. Twice is harmless."""
        self.peers = tuple(other for other in self.peers if other is not peer)

    def hear(self, peer: PeerRecord, announcement: Announcement, now: float) -> None:
        """Records a peer's announcement. Refuses one with an unexpected id, or with the id of a peer that is known."""
        if problem := self._problem(peer, announcement.replica, now):
            peer.refuse(problem)
        else:
            peer.note_announcement(announcement, now)

    def _problem(self, peer: PeerRecord, replica: str, now: float) -> str:
        if replica == self.own_id:
            return "it is this server itself, or has its COROSRV_REPLICA_ID"
        if peer.expected_id and peer.expected_id != replica:
            return f"it says that it is {replica}, and not {peer.expected_id}"
        twins = [other for other in self.peers if other is not peer and other.offers is not None]
        for twin in twins:
            if twin.id == replica and twin.state(now) is not PeerState.STALE:
                return f"it has the same id as {twin.url}, {replica}"
        return ""

    def ready(self, now: float) -> list[PeerRecord]:
        return [peer for peer in self.peers if peer.state(now) is PeerState.READY]

    def has_match(self, target: PeerTarget, visited: Collection[str], now: float) -> bool:
        """Tells whether a peer that has not seen a request serves its target."""
        return bool(self._matches(target, visited, now))

    def choose(self, target: PeerTarget, visited: Collection[str], now: float, key: str = "") -> PeerRecord | None:
        """Returns the peer that gets a request; None if none serves its target that has not seen it.

        `key`: the request's idempotency key: one that is repeated goes to the same peer, which has its answer. Without
        one, the peer with the fewest requests gets it, in turns.
        """
        matches = self._matches(target, visited, now)
        if not matches:
            return None

        def rank(peer: PeerRecord) -> tuple[bool, float, int]:
            load = -score(key, peer.id) if key else float(peer.in_flight)
            return peer.has_refused(target), load, peer.turn

        best = min(matches, key=rank)
        self._n_turns += 1
        best.turn = self._n_turns
        return best

    def _matches(self, target: PeerTarget, visited: Collection[str], now: float) -> list[PeerRecord]:
        return [
            peer
            for peer in self.ready(now)
            if peer.id not in visited and peer.offers is not None and target.is_offered(peer.offers)
        ]
