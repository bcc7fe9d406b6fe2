"""Runs one call on a peer, and on one other if that cannot serve it either."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import gevent
from gevent import Greenlet, GreenletExit

from corosrv.base.errors import CallCancelled, CorosrvError, DeadlinePassed, HandlerFailed, Refused, WorkerLost
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, HandlerCard
from corosrv.contracts.settings.fleet import REPLICA_ID
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits, is_redirect
from corosrv.fleet.upstreams.failures import UpstreamDown, UpstreamLost
from corosrv.gateway.delegation.peer import Peer
from corosrv.gateway.delegation.roster import PeerRecord, Roster
from corosrv.gateway.delegation.targets import PeerTarget
from corosrv.gateway.delegation.trip import (
    ELAPSED,
    PATH,
    SERVED_BY,
    DelegationStats,
    Result,
    Trip,
    header_of,
    parse_path,
)
from corosrv.workers.dispatch.answers import HandlerReader

log = logging.getLogger("corosrv.delegation")

MAX_TRIES = 2  # peers that are asked for one request
MAX_REFUSAL = 1 << 16  # bytes of the answer of a peer that cannot serve a call

_CARD = HandlerCard("peer", platform="peer", is_stream=True)
_NOT_SERVED = frozenset({404, 429, 503})
_BUSY = frozenset({429, 503})
_MARGIN = 1.0  # seconds beyond the call's time, in which the peer's own answer to that comes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRequest:
    """A request that is to go to a peer. `request` has no headers of the trip; times are of time.monotonic()."""

    target: PeerTarget
    request: ForwardRequest
    arrived: float
    deadline: float | None = None
    key: str = ""  # idempotency key


@dataclass(frozen=True, slots=True)
class PeerRefusal:
    """The answer of a peer that serves a target, but not now."""

    head: AnswerHead
    body: bytes
    replica: str


class DelegatedCall:
    """Runs a call in a greenlet; its reader gives what `UpstreamPool.submit` says. It ends once, whatever happens.

    A call that no peer serves ends in the error of this server, and `refusal` is what a busy peer said.
    """

    def __init__(
        self,
        roster: Roster,
        peers: Mapping[PeerRecord, Peer],
        peer_request: PeerRequest,
        trip: Trip,
        own_error: CorosrvError,
        limits: ExchangeLimits,
        stats: DelegationStats,
    ) -> None:
        """`trip`: of the request, with this replica in it. `own_error`: what this server answers by itself."""
        self.trip = trip
        self.refusal: PeerRefusal | None = None
        self.served_by = ""
        self.peer = ""  # the id of the one that has begun to answer, by itself or by another one
        self.reader = HandlerReader(_CARD, self._cancel)
        self._roster = roster
        self._peers = peers
        self._wanted = peer_request
        self._request: ForwardRequest | None = peer_request.request  # until a peer has begun to answer
        self.own_error = own_error
        self._limits = limits
        self._stats = stats
        self._error: CorosrvError | None = None
        self._greenlet: Greenlet | None = None

    def start(self) -> None:
        self._stats.in_flight += 1
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.rawlink(lambda greenlet: self._end())  # also of one that is killed before it has begun

    def fail(self, error: CorosrvError) -> None:
        """Ends the call, and the connection that it is on. Never waits."""
        if self._error is None and self._greenlet is not None and not self._greenlet.ready():
            self._error = error
            self._greenlet.kill(block=False)

    def _cancel(self) -> None:
        self.fail(CallCancelled("the call was cancelled"))

    def _run(self) -> None:
        deadline = self._wanted.deadline
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0) + _MARGIN
        try:
            with gevent.Timeout(left, DeadlinePassed("the call's time was over while a peer had it")):
                self._try_peers()
        except CorosrvError as error:
            self._error = self._error or error
        except GreenletExit:
            pass
        except Exception:
            log.exception("a call to a peer failed by a bug")
            self._error = HandlerFailed("the call could not be passed to a peer")

    def _try_peers(self) -> None:
        wanted = self._wanted
        for _ in range(MAX_TRIES):
            record = self._roster.choose(wanted.target, self.trip.visited, time.monotonic(), wanted.key)
            if record is None:
                break
            if self._is_answered_by(self._peers[record]):
                return
        raise self.own_error

    def _is_answered_by(self, peer: Peer) -> bool:
        """Asks a peer, and passes its answer on. Returns False if it cannot serve the call."""
        exchange, is_whole = Exchange(peer.connections, self._limits), False
        peer.calls[self] = None
        peer.record.in_flight += 1
        try:
            head = self._ask(peer, exchange)
            if head is None:
                return False
            if _is_refusal(head):
                peer.record.note_refused(self._wanted.target)
                is_whole = self._keep_refusal(head, exchange, peer.record.id)
                return False
            self._pass_on(head, exchange, peer.record.id)
            is_whole = True
            return True
        except UpstreamLost as error:
            words = str(error).replace("the upstream", f"the replica {peer.record.id}")
            raise WorkerLost(words) from None
        finally:
            peer.record.in_flight -= 1
            peer.calls.pop(self, None)
            exchange.close(is_whole)

    def _ask(self, peer: Peer, exchange: Exchange) -> AnswerHead | None:
        """Returns the head of a peer's answer; None if there is no connection to it."""
        request = self._request
        assert request is not None
        elapsed = max(time.monotonic() - self._wanted.arrived, 0.0)
        headers = (*request.headers, *self.trip.onward(), (ELAPSED, str(int(elapsed * 1000))))
        try:
            head = exchange.ask(peer.path(request.path), request, headers)
        except UpstreamDown as error:
            peer.record.note_lost(str(error).replace("the upstream", "it"))
            return None
        if is_redirect(head.status):
            raise UpstreamLost(f"the upstream answered {head.status}, a redirect, which is not followed")
        self.trip = self.trip.visit((peer.record.id, *_visited_by(head)))
        return head

    def _pass_on(self, head: AnswerHead, exchange: Exchange, replica: str) -> None:
        self._request = None
        self.peer = replica
        served_by = header_of(head, SERVED_BY)
        self.served_by = served_by if REPLICA_ID.fullmatch(served_by) else replica
        self.reader.add(head, 0)
        while not exchange.pump(self._add):
            self.reader.wait_for_room()

    def _add(self, piece: bytes) -> bool:
        self.reader.add(AnswerBody(data=piece), len(piece))
        return True

    def _keep_refusal(self, head: AnswerHead, exchange: Exchange, replica: str) -> bool:
        """Keeps what a busy peer says, which tells the client more than this server can. Returns whether all is read.

        One who breaks off while it refuses has refused.
        """
        body = bytearray()
        try:
            for piece in exchange.pieces():
                body += piece
                if len(body) > MAX_REFUSAL:
                    return False
        except UpstreamLost:
            return False
        if head.status in _BUSY:
            self.refusal = PeerRefusal(head, bytes(body), replica)
        return True

    def _end(self) -> None:
        self._request = None
        self._stats.in_flight -= 1
        self._stats.results[self._result()] += 1
        self.reader.end(self._error)

    def _result(self) -> Result:
        if self._error is None:
            return Result.ANSWERED
        if self._error is self.own_error:
            return Result.REFUSED
        return Result.CANCELLED if isinstance(self._error, CallCancelled) else Result.LOST


def _is_refusal(head: AnswerHead) -> bool:
    """Tells whether nothing of the call has run, which another peer may serve.

    A replica that does not know this one's token takes it for a client without a key, and does not say who it is.
    """
    return head.status in _NOT_SERVED or (head.status == 401 and not header_of(head, SERVED_BY))


def _visited_by(head: AnswerHead) -> tuple[str, ...]:
    """Returns the replicas that a peer says have seen the request."""
    try:
        return parse_path(header_of(head, PATH))
    except Refused:
        return ()
