"""Answers of requests that are repeated with an Idempotency-Key: computed once, and sent again as they were.

What failed, broke off or was left is not kept. A stream is also written to a log, so that who repeats its request
follows it while it runs; see corosrv.web.kept.streams.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from flask import Request, Response, g, request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.waits import ThreadLock, call_in_thread
from corosrv.contracts.idempotency import HEADER, LIFETIME, MAX_BYTES, KeyedRecords, SharedRecords, parse_key
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import AnyRequest, caller, current
from corosrv.web.http.openapi import with_idempotency_key
from corosrv.web.http.sse import EventStream
from corosrv.web.kept.recording import AnswerClaim, AnswerRecording, KeptAnswer
from corosrv.web.kept.streams import (
    CONVERSATION_FIELD,
    CREDENTIALS,
    LAST_EVENT,
    NamedRequest,
    ResumableStreams,
    conversation_of,
    last_event,
    scoped,
    stream_not_found,
)

log = logging.getLogger("corosrv.http")

_FIELD = f"HTTP_{HEADER.upper().replace('-', '_')}"  # in WSGI's words
_KEEP_IF = "corosrv_keep_if"
# A larger body is hashed in a thread.
_AT_ONCE = 1 << 20

View = TypeVar("View", bound=Callable[..., Response])


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
        self,
        bodies: BodyReader,
        max_bytes: int = MAX_BYTES,
        lifetime: float = LIFETIME,
        n_callers: int = 1,
        streams: ResumableStreams | None = None,
    ) -> None:
        """See KeyedRecords; without bytes the header is ignored. `streams`: makes those that clients come back to."""
        self._bodies = bodies
        self._records: KeyedRecords[KeptAnswer] = KeyedRecords(max_bytes, lifetime, n_callers)
        self._lock = ThreadLock()
        self._lost_claims: deque[AnswerClaim] = deque()
        self._shared: SharedRecords | None = None
        self.streams = streams
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

    def once(self, max_body_bytes: int, headers: Iterable[str] = (), *, is_kept: bool = True) -> Callable[[View], View]:
        """Makes a decorator of views that answer each key once, and whose streams can be resumed; requests that name
        neither a key nor a conversation go straight to the view.

        `headers`: names of those that change the view's answer, so that with other values it is another request.
        `is_kept`: answers that have ended are kept here, and not by whoever makes them.
        """
        names = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in headers)

        def decorate(view: View) -> View:
            @functools.wraps(view)
            def answer(*arguments: Any, **keywords: Any) -> Response:
                environ = current(request).environ
                if _FIELD not in environ and CONVERSATION_FIELD not in environ:
                    return view(*arguments, **keywords)
                bound = functools.partial(view, *arguments, **keywords)
                key = parse_key(environ[_FIELD]) if self._records.is_on and _FIELD in environ else ""
                conversation = conversation_of(environ) if self._resumes else ""
                if not key and not conversation:
                    return bound()
                asking = self._read(key, conversation, max_body_bytes, names, is_kept=is_kept)
                return self._answer(bound, asking)

            return with_idempotency_key(answer) if self._records.is_on and is_kept else answer  # type: ignore[return-value]

        return decorate if self._records.is_on or self.streams is not None else lambda view: view

    @property
    def _resumes(self) -> bool:
        return self.streams is not None and self.streams.logs.is_on

    def _read(
        self, key: str, conversation: str, max_body_bytes: int, names: tuple[str, ...], *, is_kept: bool
    ) -> NamedRequest:
        """Reads what the request at hand asks for. Waits for its body. Raises Refused."""
        incoming, bodies = current(request), self._bodies
        if is_kept:
            body = bodies.read_ahead(incoming, max_body_bytes)
        else:
            body = bodies.put_back(incoming, bodies.read_as_sent(incoming, max_body_bytes))
        return NamedRequest(
            key if is_kept else "",
            tuple(
                scoped(incoming.environ, *name) for name in (("key", key), ("conversation", conversation)) if name[1]
            ),
            _digest(incoming, body, names),
            last_event(incoming.environ) if self._resumes else None,
        )

    def _answer(self, view: Callable[[], Response], asking: NamedRequest) -> Response:
        """Answers from a log or the records, or calls the view. Waits.

        Raises KeyReused, Conflict, TooManyLogs, EventsGone, and NotFound for a stream that is not known any more.
        """
        if self.streams is not None and (repeated := self.streams.repeat(asking)) is not None:
            self.n_replayed += 1
            return repeated
        claim = None
        if asking.key:
            begun = self._begin(asking.key, asking.digest)
            kept = begun if isinstance(begun, KeptAnswer) else self._begin_shared(begun, asking.key, asking.digest)
            if kept is not None:
                self.n_replayed += 1
                return kept.response(asking.after)
            assert isinstance(begun, AnswerClaim)
            claim = begun
        recording = None if claim is None else AnswerRecording(self, claim)
        try:
            if asking.after is not None:
                raise stream_not_found(LAST_EVENT)
            return self._compute(view, asking, recording)
        except BaseException:
            if recording is not None:
                recording.drop()
            raise

    def _compute(
        self, view: Callable[[], Response], asking: NamedRequest, recording: AnswerRecording | None
    ) -> Response:
        streams = self.streams if self._resumes else None
        response = view() if streams is None else streams.call(view)
        is_good = current(g).pop(_KEEP_IF, None)
        if recording is not None:
            recording.attach(response, is_good)
        if isinstance(response.response, EventStream):
            if streams is not None:
                streams.keep(response, asking.names, asking.digest, recording)
            elif recording is not None:
                response.response.record(recording)
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


def is_keyed(incoming: AnyRequest) -> bool:
    """Tells whether a request has an Idempotency-Key, so that its answer may be kept."""
    return _FIELD in incoming.environ


def _digest(incoming: Request, body: bytes, names: tuple[str, ...]) -> bytes:
    """Returns a digest of what a request asks for. Waits for that of a large body."""
    environ = incoming.environ
    digest = hashlib.blake2b(digest_size=16)
    if not caller():
        names += CREDENTIALS
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
