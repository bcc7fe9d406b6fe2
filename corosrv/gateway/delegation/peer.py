"""Reaches peers: their connections, the calls that they run for this server, and what they say they serve.

Each is asked every few seconds; a peer that has fallen silent loses its calls. Peers are found among the fronts that
share a Redis, too: each announces its address there, and proves that it has the token. Whoever may write to Redis could
announce an address of his own, and would be sent the peers' token: so an address counts by its proof alone, which is
made with a key that is derived from the token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import gevent
import msgspec

from corosrv.base.errors import CorosrvError, Refused, SettingsError, WorkerLost
from corosrv.contracts.jobs.infer import ForwardRequest, Headers
from corosrv.contracts.settings.fleet import REPLICA_ID
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits
from corosrv.fleet.upstreams.failures import UpstreamDown, UpstreamLost
from corosrv.fleet.upstreams.spec import UpstreamSpec
from corosrv.gateway.delegation.announcement import MAX_BYTES, PATH, Announcement, BadAnnouncement, parse_announcement
from corosrv.gateway.delegation.roster import PeerRecord, PeerState, Roster
from corosrv.gateway.delegation.trip import TOKEN
from corosrv.web.http.reply import Flood, line

log = logging.getLogger("corosrv.delegation")

ASK_TIMEOUT = 4.0  # seconds that one announcement may take
MAX_IDLE = 16  # connections

_NOT_KNOWN = frozenset({401, 403})


class PeerCall(Protocol):
    """A call that a peer runs."""

    def fail(self, error: CorosrvError) -> None:
        """Ends the call. Never waits."""


class Peer:
    """Holds one peer. Belongs to the hub's thread."""

    def __init__(self, url: str, expected_id: str = "", *, is_found: bool = False) -> None:
        """Raises Refused for a wrong URL."""
        self.record = PeerRecord(UpstreamSpec(url=url).url, expected_id, is_found=is_found)
        self.calls: dict[PeerCall, None] = {}  # in the order of their starts
        self._base_path = urlsplit(self.record.url).path
        self.connections = UpstreamConnections(self.record.url, MAX_IDLE)
        # Apart from those of calls: one that is kept while a peer hangs would tell nothing.
        self._asking = UpstreamConnections(self.record.url, 0)

    def path(self, path: str) -> str:
        """Returns the path of a request there, which may lie below a path of its own."""
        return self._base_path + path

    def ask(self, token: str) -> Announcement:
        """Returns what the peer announces. Waits, ASK_TIMEOUT at most.

        Raises CorosrvError in words for a log, UpstreamDown where there is no connection.
        """
        headers: Headers = (("Accept", "application/json"), (TOKEN, token))
        late = CorosrvError(f"it did not answer within {ASK_TIMEOUT:g} s")
        exchange = Exchange(self._asking, ExchangeLimits(ASK_TIMEOUT, ASK_TIMEOUT))
        body = bytearray()
        try:
            with gevent.Timeout(ASK_TIMEOUT, late):
                head = exchange.ask(self.path(PATH), ForwardRequest(method="GET"), headers)
                if head.status != 200:
                    raise CorosrvError(_words_of(head.status))
                for piece in exchange.pieces():
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise CorosrvError(f"its announcement is longer than {MAX_BYTES >> 20} MiB")
            return parse_announcement(bytes(body))
        except UpstreamDown as error:
            raise UpstreamDown(str(error).replace("the upstream", "it")) from None
        except UpstreamLost as error:
            raise CorosrvError(str(error).replace("the upstream", "it")) from None
        except BadAnnouncement as error:
            raise CorosrvError(str(error)) from None
        finally:
            exchange.close(is_whole=False)

    def abort(self, error: CorosrvError) -> None:
        """Ends all its calls."""
        for call in list(self.calls):
            call.fail(error)

    def close(self) -> None:
        """Closes what is idle, and keeps nothing from now on. Twice is harmless."""
        self.connections.close()
        self._asking.close()


def _words_of(status: int) -> str:
    if status in _NOT_KNOWN:
        return f"it answered {status}: its COROSRV_PEER_TOKEN is another"
    return f"it answered {status}, as no replica does that has a COROSRV_PEER_TOKEN"


def parse_peer(text: str) -> Peer:
    """Reads a peer as the command line has it: `http://host:8080?id=NAME`. Raises SettingsError."""
    url, _, query = text.strip().partition("?")
    expected_id = ""
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "id" or not REPLICA_ID.fullmatch(value):
            raise SettingsError("COROSRV_PEERS: the only option of a peer is its id, as in http://host:8080?id=NAME")
        expected_id = value
    try:
        return Peer(url, expected_id)
    except Refused as error:  # without the URL itself, which may hold a password
        raise SettingsError(f"COROSRV_PEERS: {error}") from None


INTERVAL = 5.0  # seconds between two questions to a peer that is ready
FAST_INTERVAL = 1.0  # to one that is not known yet, or cannot be reached
_UNREACHED = frozenset({PeerState.ASKING, PeerState.DOWN, PeerState.STALE})


class PeerAsker:
    """Asks all peers, each in a greenlet of its own. `peers`: those of the roster, and those that end their calls."""

    def __init__(self, own_id: str, peers: tuple[Peer, ...], token: str) -> None:
        """`own_id`: of this replica. `peers`: those of the start."""
        self.roster = Roster(own_id, [peer.record for peer in peers])
        self.peers = {peer.record: peer for peer in peers}
        self._token = token
        self._is_started = False
        self._greenlets: dict[PeerRecord, gevent.Greenlet] = {}

    def start(self) -> None:
        """Begins to ask. Twice is harmless."""
        if not self._is_started:
            self._is_started = True
            for peer in self.peers.values():
                self._begin(peer)

    def close(self) -> None:
        """Ends it. Never waits; twice is harmless."""
        self._is_started = False
        gevent.killall(list(self._greenlets.values()), block=False)
        self._greenlets.clear()

    def add(self, peer: Peer) -> None:
        """Asks one more peer, which gets requests once it has announced something."""
        self.peers[peer.record] = peer
        self.roster.add(peer.record)
        if self._is_started:
            self._begin(peer)

    def remove(self, peer: Peer) -> None:
        """Sends a peer no more requests. It is asked on until those that it has are over, and closed."""
        self.roster.remove(peer.record)

    def _begin(self, peer: Peer) -> None:
        self._greenlets[peer.record] = gevent.spawn(self._ask_on, peer)

    def _ask_on(self, peer: Peer) -> None:
        last_words = ""
        while peer.record in self.roster.peers or peer.calls:
            try:
                last_words = self._ask(peer, last_words)
            except Exception:
                log.exception("peer %s could not be asked by a bug", peer.record.url)
            is_unreached = peer.record.state(time.monotonic()) in _UNREACHED
            gevent.sleep((FAST_INTERVAL if is_unreached else INTERVAL) * random.uniform(0.9, 1.0))
        self.peers.pop(peer.record, None)
        self._greenlets.pop(peer.record, None)
        peer.close()

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
            self.roster.hear(record, announcement, time.monotonic())
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
