"""Answers of requests that are repeated with an Idempotency-Key: computed once, and sent again as they were.

What failed, broke off or was left is not kept. `AnswerRecording` copies an answer while it is sent.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from flask import Request, Response, g, request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.waits import ThreadLock, call_in_thread
from corosrv.contracts.idempotency import (
    HEADER,
    LIFETIME,
    MAX_BYTES,
    KeyClaim,
    KeyedRecords,
    SharedClaim,
    SharedRecords,
    parse_key,
)
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import with_idempotency_key
from corosrv.web.http.reply import Flood, whole_response
from corosrv.web.http.sse import EventStream

log = logging.getLogger("corosrv.http")
_too_large = Flood(log, "%d more answers were too large to be kept under their Idempotency-Key")

_TOO_LARGE = "an answer was too large to be kept under its Idempotency-Key; see COROSRV_IDEMPOTENCY_BYTES"
_FIELD = f"HTTP_{HEADER.upper().replace('-', '_')}"  # in WSGI's words
_KEEP_IF = "corosrv_keep_if"
# A server that asks for no keys may pass them on: whoever has another one is not given what the first one got.
_CREDENTIALS = ("HTTP_AUTHORIZATION", "HTTP_X_API_KEY")
# A larger body is hashed in a thread.
_AT_ONCE = 1 << 20

View = TypeVar("View", bound=Callable[..., Response])


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Holds an answer as it was sent, without the headers that each answer has of its own."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[bytes, ...]

    def response(self) -> Response:
        """Makes the answer to a repeated request."""
        kind = dict(self.headers).get("Content-Type", "")
        response = whole_response(self.pieces, kind, self.status)
        for name, value in self.headers:
            response.headers[name] = value
        response.headers["Idempotency-Replayed"] = "true"
        return response


class AnswerClaim:
    """The right to answer the first request under a key, in this server and among those that it shares with."""

    __slots__ = ("_records", "_shared")

    def __init__(self, records: KeyClaim[KeptAnswer], shared: SharedClaim | None = None) -> None:
        self._records = records
        self._shared = shared

    def share(self, shared: SharedClaim | None) -> None:
        self._shared = shared

    def grow(self, n_bytes: int) -> bool:
        """Counts bytes of the answer; see KeyClaim."""
        return self._records.grow(n_bytes)

    def finish(self, answer: KeptAnswer, now: float) -> None:
        """Keeps the answer, unless it is too large."""
        is_kept = self._records.finish(answer, now)
        if self._shared is None:
            return
        if is_kept:
            self._shared.finish(msgspec.msgpack.encode(answer))
        else:
            self._shared.drop()

    def drop(self) -> None:
        """Frees the key."""
        self._records.drop()
        if self._shared is not None:
            self._shared.drop()

    def abandon(self) -> None:
        """Frees the key among the servers that share it. May be called while garbage is collected."""
        if self._shared is not None:
            self._shared.abandon()


def keep_if(is_good: Callable[[], bool]) -> None:
    """Keeps the current request's answer only if `is_good` holds when it is complete; others may add conditions."""
    notes = current(g)
    others = notes.get(_KEEP_IF)
    setattr(notes, _KEEP_IF, is_good if others is None else lambda: others() and is_good())


class KeyedAnswers:
    """Keeps answers under the keys of requests: in memory, and with other servers where they share. For any thread.

    Kept is what ended well: no error, and no stream that broke off. A request that fails, or whose client leaves while
    it runs, leaves its key free, and its repetition is computed anew.
    """

    def __init__(
        self, bodies: BodyReader, max_bytes: int = MAX_BYTES, lifetime: float = LIFETIME, n_callers: int = 1
    ) -> None:
        """See KeyedRecords; without bytes the header is ignored."""
        self._bodies = bodies
        self._records: KeyedRecords[KeptAnswer] = KeyedRecords(max_bytes, lifetime, n_callers)
        self._lock = ThreadLock()
        self._lost_claims: deque[AnswerClaim] = deque()
        self._shared: SharedRecords | None = None
        self.n_replayed = 0

    def share(self, records: SharedRecords) -> None:
        """Answers repeated requests from these records as well, from now on, and keeps new answers there."""
        self._shared = records

    @property
    def n_records(self) -> int:
        with self._lock:
            return self._records.n_records

    @property
    def n_bytes(self) -> int:
        with self._lock:
            return self._records.n_bytes

    def once(self, max_body_bytes: int, headers: Iterable[str] = ()) -> Callable[[View], View]:
        """Makes a decorator of views that answer each key once; requests without the header go straight to the view.

        `headers`: names of those that change the view's answer, so that with other values it is another request.
        """
        names = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in headers)

        def decorate(view: View) -> View:
            @functools.wraps(view)
            def answer(*arguments: Any, **keywords: Any) -> Response:
                if not is_keyed(current(request)):
                    return view(*arguments, **keywords)
                return self._answer(functools.partial(view, *arguments, **keywords), max_body_bytes, names)

            return with_idempotency_key(answer)  # type: ignore[return-value]

        return decorate if self._records.is_on else lambda view: view

    def _answer(self, view: Callable[[], Response], max_body_bytes: int, names: tuple[str, ...]) -> Response:
        """Answers from the records, or calls the view. Waits for the body. Raises Refused, KeyReused and Conflict."""
        incoming = current(request)
        key = parse_key(incoming.environ[_FIELD])
        digest = _digest(incoming, self._bodies.read_ahead(incoming, max_body_bytes), names)
        begun = self._begin(key, digest)
        if isinstance(begun, KeptAnswer):
            self.n_replayed += 1
            return begun.response()
        if (answer := self._begin_shared(begun, key, digest)) is not None:
            self.n_replayed += 1
            return answer.response()
        recording = AnswerRecording(self, begun)
        try:
            response = view()
            recording.attach(response, current(g).pop(_KEEP_IF, None))
        except BaseException:
            recording.drop()
            raise
        return response

    def _begin(self, key: str, digest: bytes) -> KeptAnswer | AnswerClaim:
        with self._lock:
            while self._lost_claims:
                self._lost_claims.popleft().drop()
            begun = self._records.begin(caller(), key, digest, time.monotonic())
        return begun if isinstance(begun, KeptAnswer) else AnswerClaim(begun)

    def _begin_shared(self, claim: AnswerClaim, key: str, digest: bytes) -> KeptAnswer | None:
        """Asks the servers that share records; returns their answer, or None with a claim that counts there too."""
        if self._shared is None:
            return None
        try:
            begun = self._shared.begin(caller(), key, digest)
            answer = msgspec.msgpack.decode(begun, type=KeptAnswer) if isinstance(begun, bytes) else None
        except msgspec.MsgspecError:  # kept by another version, or by somebody else: it is computed once more
            log.warning("an answer under an Idempotency-Key that another server kept cannot be read")
            return None
        except BaseException:
            self.drop(claim)
            raise
        if isinstance(begun, bytes):
            self.drop(claim)
        else:
            claim.share(begun)
        return answer

    # For recordings.

    def grow(self, claim: AnswerClaim, n_bytes: int) -> bool:
        """Counts bytes of an answer in the making; see AnswerClaim."""
        with self._lock:
            return claim.grow(n_bytes)

    def finish(self, claim: AnswerClaim, answer: KeptAnswer) -> None:
        with self._lock:
            claim.finish(answer, time.monotonic())

    def drop(self, claim: AnswerClaim) -> None:
        with self._lock:
            claim.drop()

    def drop_later(self, claim: AnswerClaim) -> None:
        """Drops a claim before the next one is made. Takes no lock: garbage may be collected while it is held."""
        claim.abandon()
        self._lost_claims.append(claim)


class AnswerRecording:
    """Records the answer of one request in the making; see corosrv.web.http.sse.Recording.

    Ends once. One that nobody ends, because the server broke down around it, ends as dropped when it is collected.
    """

    def __init__(self, answers: KeyedAnswers, claim: AnswerClaim) -> None:
        self._answers = answers
        self._claim: AnswerClaim | None = claim
        self._is_good: Callable[[], bool] | None = None
        self._status = 200
        self._headers: tuple[tuple[str, str], ...] = ()
        self._body = bytearray()
        self._is_given_up = False

    def attach(self, response: Response, is_good: Callable[[], bool] | None) -> None:
        """Keeps a response that is complete, or begins to record a stream."""
        self._is_good = is_good
        self._status = response.status_code
        self._headers = tuple((name, value) for name, value in response.headers if name != "Content-Length")
        body: Any = response.response
        if not 200 <= self._status < 300:
            self.drop()
        elif isinstance(body, EventStream):
            body.record(self)
        elif response.is_sequence and self._grow(sum(map(len, body))):
            self._finish(tuple(body))
        else:
            self.drop()

    def add(self, piece: bytes) -> None:
        if self._grow(len(piece)):
            self._body += piece

    def finish(self) -> None:
        self._finish((bytes(self._body),))

    def drop(self) -> None:
        claim, self._claim = self._claim, None
        self._body = bytearray()
        if claim is not None:
            self._answers.drop(claim)

    def __del__(self) -> None:
        if self._claim is not None:
            self._answers.drop_later(self._claim)

    def _grow(self, n_bytes: int) -> bool:
        if self._claim is None or self._is_given_up:
            return False
        if self._answers.grow(self._claim, n_bytes):
            return True
        self._is_given_up = True
        self._body = bytearray()
        _too_large.count(lambda: log.warning(_TOO_LARGE))
        return False

    def _finish(self, pieces: tuple[bytes, ...]) -> None:
        if self._claim is None or (self._is_good is not None and not self._is_good()):
            self.drop()
            return
        claim, self._claim = self._claim, None
        self._answers.finish(claim, KeptAnswer(self._status, self._headers, pieces))
        self._body = bytearray()


def is_keyed(incoming: Request) -> bool:
    """Tells whether a request has an Idempotency-Key, so that its answer may be kept."""
    return _FIELD in incoming.environ


def _digest(incoming: Request, body: bytes, names: tuple[str, ...]) -> bytes:
    """Returns a digest of what a request asks for. Waits for that of a large body."""
    environ = incoming.environ
    digest = hashlib.blake2b(digest_size=16)
    if not caller():
        names += _CREDENTIALS
    for name in ("REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", *names):
        value = str(environ.get(name, "")).encode("latin-1", "replace")
        digest.update(len(value).to_bytes(8, "little"))
        digest.update(value)
    if len(body) > _AT_ONCE:
        call_in_thread(digest.update, body)
    else:
        digest.update(body)
    return digest.digest()


class KeyCollector(Collector):
    """Reads the numbers of kept answers at each scrape."""

    def __init__(self, answers: KeyedAnswers) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        answers = self._answers
        yield GaugeMetricFamily(
            "corosrv_idempotency_records", "Requests known by their Idempotency-Key", answers.n_records
        )
        yield GaugeMetricFamily("corosrv_idempotency_bytes", "Bytes that they and their answers take", answers.n_bytes)
        yield CounterMetricFamily(
            "corosrv_idempotency_replays", "Requests answered with the answer of an earlier one", answers.n_replayed
        )
