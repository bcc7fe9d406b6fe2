"""Finds peers among the fronts that share a Redis: each announces its address there, and proves that it has the token.

Whoever may write to Redis could announce an address of his own, and would be sent the peers' token: so an address
counts by its proof alone, which is made with a key that is derived from the token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from corosrv.base.errors import Refused
from corosrv.gateway.delegation.peer import Peer, PeerAsker
from corosrv.web.http.reply import Flood, line

log = logging.getLogger("corosrv.delegation")
_ignored = Flood(log, "%d more fronts were ignored, which announce themselves as peers without this COROSRV_PEER_TOKEN")

GRACE = 5.0  # seconds for which a front that Redis no longer has is a peer: it comes back to one that has lost all


class PeerNotice(msgspec.Struct, frozen=True):
    """The address that a front announces to its peers, if any, and the proof that it may."""

    front: str
    url: str = ""
    proof: str = ""


class PeerSeal:
    """Proves that whoever announces an address has the peers' token, and checks that of others."""

    def __init__(self, token: str, namespace: str) -> None:
        """Derives the key, slowly on purpose: in Redis a proof is there for everybody who would guess the token."""
        salt = f"corosrv peers in {namespace}".encode()
        self._key = hashlib.scrypt(token.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32)

    def notice(self, front: str, url: str) -> PeerNotice:
        """Makes the notice of a front. It is valid for this front and this address alone."""
        return PeerNotice(front, url, self._proof(front, url))

    def is_valid(self, notice: PeerNotice) -> bool:
        proof = self._proof(notice.front, notice.url)
        return hmac.compare_digest(proof.encode(), notice.proof.encode("utf-8", "surrogatepass"))

    def _proof(self, front: str, url: str) -> str:
        return hmac.new(self._key, msgspec.msgpack.encode([front, url]), hashlib.sha256).hexdigest()


class FoundPeers:
    """Adds the peers that other fronts announce, and removes them when they leave. Belongs to the hub's thread.

    While Redis is away nothing is heard, and the peers stay: whether they answer is seen by asking them. Those that the
    settings name stay in any case.
    """

    def __init__(
        self, asker: PeerAsker, seal: PeerSeal, own_url: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._asker = asker
        self._seal = seal
        self._clock = clock
        self._not_found = {own_url, *(record.url for record in asker.peers)}
        self._seen: dict[str, tuple[str, float]] = {}  # by fronts: their addresses, and when they were last there
        self._found: dict[str, Peer] = {}  # by address: the processes of one server share theirs
        self._strangers: frozenset[PeerNotice] = frozenset()

    def see(self, notices: Iterable[PeerNotice]) -> None:
        """Takes what all other fronts announce now; one without an address leaves. Never waits."""
        now, strangers = self._clock(), []
        for notice in notices:
            peer = self._peer(notice)
            if peer is not None:
                self._seen[notice.front] = peer.record.url, now
                if peer.record.url not in self._not_found and peer.record.url not in self._found:
                    self._found[peer.record.url] = peer
                    log.info("peer %s was found: the front %s announces it", peer.record.url, notice.front)
                    self._asker.add(peer)
                continue
            self._seen.pop(notice.front, None)
            if notice.url:
                strangers.append(notice)
        self._ignore(strangers)
        self._seen = {front: seen for front, seen in self._seen.items() if now - seen[1] <= GRACE}
        for url in self._found.keys() - {url for url, _ in self._seen.values()}:
            log.info("peer %s has left", url)
            self._asker.remove(self._found.pop(url))

    def _peer(self, notice: PeerNotice) -> Peer | None:
        """Makes the peer of a notice; None where it has no proof, or no address that --peer would take."""
        if not notice.url or not self._seal.is_valid(notice):
            return None
        try:
            return Peer(notice.url, is_found=True)
        except Refused:
            return None

    def _ignore(self, strangers: list[PeerNotice]) -> None:
        """Logs each once, and not at every look."""
        for stranger in strangers:
            if stranger not in self._strangers:
                words = (
                    f"the front {stranger.front!r} is ignored: it announces a peer, and has another COROSRV_PEER_TOKEN"
                )
                _ignored.count(lambda words=words: log.warning("%s", line(words)))  # type: ignore[misc]
        self._strangers = frozenset(strangers)
