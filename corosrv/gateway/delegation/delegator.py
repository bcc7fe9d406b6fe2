"""Hands a call to a peer, if this server could not serve it: the HTTP request at hand, or a call of another origin.

That is so for errors which promise that nothing of it has run; `reason_of` and `is_for_peers` say which. `OwnerAnswers`
hands a call to another worker process of this server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import Request, Response, g, request

from corosrv.base.errors import (
    CorosrvError,
    HttpError,
    InvalidTrip,
    ModelFailed,
    ModelNotFound,
    NoCapacity,
    NotFound,
    NotHandedOver,
    NoWorker,
    QueueFull,
    Refused,
    Starting,
    Unavailable,
    WorkerGone,
)
from corosrv.contracts.jobs.infer import ForwardRequest, HandlerCard, InferItem, InferJob, InferReader, ModelTarget
from corosrv.contracts.jobs.terms import Account
from corosrv.dialects.anthropic import routes as anthropic
from corosrv.dialects.generation.call import event
from corosrv.dialects.ollama import routes as ollama
from corosrv.dialects.ollama.answers import encode_line
from corosrv.fleet.upstreams.exchange import ExchangeLimits
from corosrv.fleet.upstreams.failures import UpstreamBusy
from corosrv.gateway.delegation.call import DelegatedCall, PeerRefusal, PeerRequest
from corosrv.gateway.delegation.infer import PeerAnswers, SiblingCall, request_of, target_of
from corosrv.gateway.delegation.peer import Peer
from corosrv.gateway.delegation.roster import PeerRecord, Roster
from corosrv.gateway.delegation.targets import (
    KeptResponse,
    ModelOfDialect,
    PeerTarget,
    RequestBody,
    TargetFinder,
    dialect_path,
    kept_id,
)
from corosrv.gateway.delegation.trip import (
    CALLER,
    COUNTS,
    SERVED_BY,
    TOKEN,
    DelegationStats,
    Result,
    Trip,
    current_trip,
    note_visited,
    onward_headers,
)
from corosrv.gateway.forwarding.answers import AnswerPassing
from corosrv.gateway.forwarding.forwarder import error_event
from corosrv.gateway.forwarding.headers import answer_headers
from corosrv.gateway.forwarding.homes import NotingReader, ResponseHomes, makes_responses
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.siblings import Siblings
from corosrv.web.http.terms import FROM_CALLER, FROM_WORKER, arrival, request_terms
from corosrv.web.key_account import COUNTED, KeyAccount
from corosrv.workers.worker.parent.call_services import CallAnswers

_UNKNOWN_CODES = frozenset({"model_not_found", "capability_not_found", "no_match"})


class Reason(str, Enum):
    """Reasons why this server cannot serve a call."""

    UNKNOWN = "unknown"  # there is no such thing here
    UNAVAILABLE = "unavailable"  # nothing here runs it now
    FULL = "full"  # it would have to wait, and must not


def reason_of(error: CorosrvError) -> Reason | None:
    """Returns why a call that ended in this error was not served; None if the error is an answer.

    Errors that code of users raises are answers, whatever their status.
    """
    if isinstance(error, (QueueFull, NoCapacity, UpstreamBusy)):
        return Reason.FULL
    if isinstance(error, (Starting, ModelFailed, NoWorker, WorkerGone, NotHandedOver)):
        return Reason.UNAVAILABLE
    if isinstance(error, ModelNotFound) or (isinstance(error, NotFound) and error.code in _UNKNOWN_CODES):
        return Reason.UNKNOWN
    return Reason.UNKNOWN if isinstance(error, HttpError) and error.status == 404 else None


def is_refused_body(error: CorosrvError) -> bool:
    """Tells whether a body was refused by what this server can read or do, before its model was looked for."""
    return isinstance(error, Refused) and not isinstance(error, InvalidTrip) and error.status in (400, 501)


def is_for_peers(error: CorosrvError, *, on_full: bool) -> bool:
    """Tells whether a call that ended in this error may go to a peer. `on_full`: also those that found a full queue."""
    reason = reason_of(error)
    return reason is not None and (on_full or reason is not Reason.FULL)


_UNQUOTED = "/:@!$&'()*+,;=~"  # in a path


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationOptions:
    """Options of delegation; see the settings of the same names."""

    token: str
    max_body_bytes: int
    write_timeout: float
    passes_keys: bool  # clients' keys go on: this server asks for none
    delegate_max: int = 64
    delegate_on_full: bool = False
    limits: ExchangeLimits = field(default_factory=ExchangeLimits)


class Delegator:
    """Delegates requests. Belongs to the hub's thread."""

    def __init__(
        self,
        roster: Roster,
        peers: Mapping[PeerRecord, Peer],
        bodies: BodyReader,
        http_stats: HttpStats,
        stats: DelegationStats,
        options: DelegationOptions,
        error_body: Callable[[CorosrvError, str], Any],
        own_models: Callable[[], Iterable[str]],
        homes: ResponseHomes,
    ) -> None:
        """`peers`: at any time those of the roster. `error_body`: makes the body of an error, in the form that a path
        asks for. `own_models`: names the models of generating dialects that are served here. `homes`: the peers that
        keep responses which they have made for this server's callers."""
        self._roster = roster
        self._peers = peers
        self._bodies = bodies
        self._targets = TargetFinder(bodies, options.max_body_bytes)
        self._http_stats = http_stats
        self._stats = stats
        self._options = options
        self._error_body = error_body
        self._own_models = own_models
        self._homes = homes

    def answer(self, own_error: CorosrvError, body: bytes | None) -> Response | None:
        """Returns a peer's answer to the request at hand; None if this server's own error stands. Waits.

        `body`: of the request, as it was sent; None if nobody has read it. Raises what ends a call that a peer had.
        """
        incoming = current(request)
        is_plain = is_for_peers(own_error, on_full=self._options.delegate_on_full)
        may_be_foreign = is_refused_body(own_error) and dialect_path(incoming.method, incoming.path) is not None
        if not self._peers or not (is_plain or may_be_foreign or own_error.status == HTTPStatus.NOT_FOUND):
            return None
        request_body = RequestBody(incoming, body)
        kept = self._kept_response(request_body)
        if kept is None and not (is_plain or may_be_foreign):
            return None
        target = self._targets.find(request_body)
        if may_be_foreign and not (target is not None and self._is_foreign(target)):
            return None
        target = kept or target
        account: KeyAccount | None = current(g).get("corosrv_account")
        if target is None or not _may_use(account, target):
            return None

        def request_to_peer() -> PeerRequest:
            return PeerRequest(
                target=target,
                request=self._onward(incoming, self._targets.body_of(request_body), account),
                arrived=arrival(),
                deadline=request_terms().deadline,
                key=incoming.environ.get("HTTP_IDEMPOTENCY_KEY", ""),
            )

        call = self._start(target, current_trip() or Trip(), own_error, request_to_peer)
        response = None if call is None else self._pass_on(incoming, call, own_error)
        if kept is not None and incoming.method == "DELETE" and response is not None and response.status_code < 400:
            self._homes.forget(caller(), kept.id)
        return response

    def _kept_response(self, body: RequestBody) -> KeptResponse | None:
        """Returns the response that a request asks about, or goes on from, if a peer has made it for the caller.

        Waits for the body. Raises Refused for one that cannot be read.
        """
        path, id = body.request.path, kept_id(body.request.path)
        if body.request.method == "POST" and makes_responses(path):
            id = self._targets.previous_response(body)
        maker = self._homes.find(caller(), id) if id else ""
        return KeptResponse(maker, id) if maker else None

    def answers(self, job: InferJob, own_error: CorosrvError) -> PeerAnswers | None:
        """Returns a peer's answers to a call over gRPC, or of a handler; None if this server's own error stands.

        Never waits. A job whose request is a ForwardRequest asks about its model. Raises Refused for a wrong query.
        """
        if not self._peers or not is_for_peers(own_error, on_full=self._options.delegate_on_full):
            return None
        target, terms = target_of(job.target), job.terms
        if not _may_use(terms.account, target):
            return None

        def request_to_peer() -> PeerRequest:
            return PeerRequest(
                target=target,
                request=request_of(job, self._options.token),
                arrived=time.monotonic(),
                deadline=terms.deadline,
                key=terms.idempotency_key,
            )

        call = self._start(target, Trip(terms.n_hops, terms.visited), own_error, request_to_peer)
        return None if call is None else PeerAnswers(call, job, self._options.max_body_bytes)

    def _start(
        self, target: PeerTarget, trip: Trip, own_error: CorosrvError, make_request: Callable[[], PeerRequest]
    ) -> DelegatedCall | None:
        """Begins a call of the peers; None, which is counted, if none of them is to be asked."""
        trip = trip.visit((self._roster.own_id,))
        if (obstacle := self._obstacle(target, trip)) is not None:
            self._stats.results[obstacle] += 1
            return None
        call = DelegatedCall(
            self._roster, self._peers, make_request(), trip, own_error, self._options.limits, self._stats
        )  # fmt: skip
        call.start()
        return call

    def _is_foreign(self, target: PeerTarget) -> bool:
        """Returns whether a body that was refused here names a model of peers, which may accept it."""
        return isinstance(target, ModelOfDialect) and target.name not in set(self._own_models())

    def _obstacle(self, target: PeerTarget, trip: Trip) -> Result | None:
        """Returns why no peer is to be asked; None if one is."""
        if trip.is_at_limit:
            return Result.HOP_LIMIT
        if not self._roster.has_match(target, trip.visited, time.monotonic()):
            return Result.NO_PEER
        return Result.FULL if self._stats.in_flight >= self._options.delegate_max else None

    def _onward(self, incoming: Request, body: bytes, account: KeyAccount | None) -> ForwardRequest:
        environ, options = incoming.environ, self._options
        counts = account is not None and account.entry.counts_answers and incoming.method in COUNTED
        path, query = quote(incoming.path, safe=_UNQUOTED), environ.get("QUERY_STRING", "")
        request_id = current(g).get("corosrv_request_id", "")
        return ForwardRequest(
            method=incoming.method,
            path=f"{path}?{query}" if query else path,
            headers=onward_headers(
                environ, request_id, caller(), options.token, passes_keys=options.passes_keys, counts=counts
            ),
            body=body,
        )

    def _pass_on(self, incoming: Request, call: DelegatedCall, own_error: CorosrvError) -> Response | None:
        make_error = _event_maker(incoming.path, current(g).get("corosrv_request_id", ""), self._error_body)
        hold = partial(self._bodies.hold, incoming)
        reader: InferReader = call.reader
        if incoming.method == "POST" and makes_responses(incoming.path):
            reader = NotingReader(reader, partial(self._homes.note, caller()), lambda head: call.peer)
        passing = AnswerPassing(incoming, reader, make_error, self._options.write_timeout, self._http_stats, hold)
        try:
            response = passing.response()
        except CorosrvError as error:
            if error is not own_error:
                raise
            return None if call.refusal is None else _of_refusal(call.refusal)
        finally:
            note_visited(call.trip)
        response.headers[SERVED_BY] = call.served_by
        return response


def _may_use(account: Account | None, target: PeerTarget) -> bool:
    """Tells whether a key may use what a peer has: a model by the name that was asked for, if it may not use all."""
    return account is None or account.may_use(target.names)


def _event_maker(
    path: str, request_id: str, error_body: Callable[[CorosrvError, str], Any]
) -> Callable[[CorosrvError], bytes]:
    """Returns what makes the event of an error that ends a stream; it needs no request."""
    if anthropic.has_path(path):
        return partial(error_event, is_anthropic=True, request_id=request_id)
    if ollama.has_path(path):
        return lambda error: encode_line(error_body(error, path))
    return lambda error: event(error_body(error, path))


def _of_refusal(refusal: PeerRefusal) -> Response:
    """Makes the answer of a peer that is busy, or not ready."""
    response = Response(refusal.body, refusal.head.status)
    for name, value in answer_headers(refusal.head.headers):
        response.headers[name] = value
    response.headers[SERVED_BY] = refusal.replica
    return response


_OF_PEERS = frozenset({TOKEN, CALLER, COUNTS})


class OwnerAnswers:
    """The answers to a call of the worker process that has its caller's state, maybe this one.

    Belongs to the hub's thread.
    """

    def __init__(
        self,
        job: InferJob,
        siblings: Siblings,
        submit: Callable[[InferJob], CallAnswers],
        max_bytes: int,
        *,
        is_counted: bool = True,
    ) -> None:
        """`submit`: runs the call here. `max_bytes`: see PeerAnswers. `is_counted`: this process has counted the
        request for its key, and no other is to."""
        self._job = job
        self._siblings = siblings
        self._submit = submit
        self._max_bytes = max_bytes
        self._is_counted = is_counted
        self._answers: CallAnswers | None = None  # once it is known who gives them
        self._is_cancelled = False

    @property
    def card(self) -> HandlerCard:
        target = self._job.target
        if self._answers is not None:
            return self._answers.card
        return HandlerCard(target.name, target.version) if isinstance(target, ModelTarget) else HandlerCard("")

    @property
    def is_replayed(self) -> bool:
        return self._answers is not None and self._answers.is_replayed

    def __iter__(self) -> Iterator[InferItem]:
        """Yields the answers and their InferEnd. Waits. Raises what `submit` does, and Unavailable."""
        self._answers = answers = self._begin()
        if self._is_cancelled:
            answers.cancel()
        yield from answers

    def _begin(self) -> CallAnswers:
        caller = self._job.terms.caller
        try:
            connection = self._siblings.connect(
                caller, {FROM_CALLER: caller} | ({FROM_WORKER: "1"} if self._is_counted else {})
            )
        except OSError:
            raise Unavailable("the worker process that has what this caller keeps is busy; try again") from None
        if connection is None:
            return self._submit(self._job)
        request = request_of(self._job, "")
        own = replace(request, headers=tuple(field for field in request.headers if field[0] not in _OF_PEERS))
        return PeerAnswers(SiblingCall(connection, own), self._job, self._max_bytes)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._answers is not None:
            self._answers.cancel()

    def close(self) -> None:
        if self._answers is not None:
            self._answers.close()
