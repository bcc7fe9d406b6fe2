"""Writes a call that no HTTP request of this server has made as one for a peer, and reads the peer's answers.

Such calls come over gRPC, or from handlers. A peer gets them as KServe's v2 protocol has them, contents in the binary
tail. Answers that are wanted as they come are events of their own, for the protocol streams nothing but text.

So does another worker process of this server, where it has the answers under idempotency keys of a call's caller.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from urllib.parse import quote

import msgspec

from corosrv.base.errors import (
    AnswerTooLarge,
    CallCancelled,
    CorosrvError,
    ErrorKind,
    Refused,
    WorkerLost,
)
from corosrv.contracts.idempotency import HEADER as KEY_HEADER
from corosrv.contracts.jobs.infer import (
    AnswerBody,
    AnswerHead,
    CapabilityTarget,
    ForwardRequest,
    HandlerCard,
    Headers,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    ModelTarget,
    Target,
)
from corosrv.contracts.jobs.terms import MAX_TIMEOUT_MS, PRIORITY, TIMEOUT, Terms
from corosrv.dialects.kserve.infer_answer import decode_answer, decode_event
from corosrv.dialects.kserve.infer_request import LENGTH_HEADER, OUTPUT_EVENTS, encode_request
from corosrv.dialects.kserve.parameters import SESSION
from corosrv.dialects.kserve.schema import KserveError
from corosrv.gateway.delegation.call import DelegatedCall, PeerRefusal
from corosrv.gateway.delegation.targets import CAPABILITY_PATH, ModelOfV2, PeerTarget, capability_target
from corosrv.gateway.delegation.trip import CALLER, COUNTS, TOKEN, header_of
from corosrv.gateway.forwarding.answers import EVENT_STREAM
from corosrv.gateway.forwarding.headers import REQUEST_ID, media_type
from corosrv.workers.wire.calls import AskEnd
from corosrv.workers.wire.faults import Fault


def target_of(target: Target) -> PeerTarget:
    """Returns what a call is for. Raises Refused for a wrong query."""
    if isinstance(target, CapabilityTarget):
        return capability_target(target.query, target.is_fuzzy)
    return ModelOfV2(target.name, target.version)


def request_of(job: InferJob, token: str) -> ForwardRequest:
    """Writes a call as a request to a peer, but for the headers of its trip.

    A ForwardRequest asks about the model: its path is what stands behind that of the model.
    """
    call = job.request
    if isinstance(call, ForwardRequest):
        path = _path_of(job.target, call.path)
        return replace(call, path=path, headers=((TOKEN, token), *_headers_of(job.terms)))
    body = encode_request(call, job.target)
    more = (("Accept", OUTPUT_EVENTS),) if job.stream else ()
    if job.terms.account is not None and job.terms.account.counts_answers:
        more = (*more, (COUNTS, "1"))
    return ForwardRequest(
        path=_path_of(job.target, "/infer"),
        headers=((LENGTH_HEADER, body.json_length), (TOKEN, token), *more, *_headers_of(job.terms)),
        body=b"".join(body.pieces),
    )


def _path_of(target: Target, action: str) -> str:
    if isinstance(target, CapabilityTarget):
        return CAPABILITY_PATH
    version = f"/versions/{quote(target.version, safe='')}" if target.version else ""
    return f"/v2/models/{quote(target.name, safe='')}{version}{action}"


def _headers_of(terms: Terms) -> Headers:
    headers = dict(terms.headers) | ({} if terms.trace is None else dict(terms.trace.headers()))
    headers |= {"Content-Type": "application/octet-stream", "Accept-Encoding": "identity"}
    headers |= {REQUEST_ID: terms.request_id, PRIORITY: str(terms.priority)}
    if terms.deadline is not None:
        left = round((terms.deadline - time.monotonic()) * 1000)
        headers[TIMEOUT] = str(min(max(left, 1), MAX_TIMEOUT_MS))
    more = {KEY_HEADER: terms.idempotency_key, SESSION: terms.session, CALLER: terms.caller}
    return (*headers.items(), *((name, value) for name, value in more.items() if value))


# The kinds of errors by a peer's status; others are the client's below 500, and the peer's from there on.
_KINDS = {
    401: ErrorKind.UNAUTHORIZED,
    403: ErrorKind.FORBIDDEN,
    404: ErrorKind.NOT_FOUND,
    409: ErrorKind.CONFLICT,
    410: ErrorKind.NOT_FOUND,
    413: ErrorKind.TOO_LARGE,
    429: ErrorKind.RATE_LIMITED,
    499: ErrorKind.CLIENT_GONE,
    501: ErrorKind.NOT_OFFERED,
    502: ErrorKind.WORKER_LOST,
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.DEADLINE_PASSED,
    507: ErrorKind.UNAVAILABLE,
}
_errors = msgspec.json.Decoder(KserveError)
_DATA = b"data: "


def error_of(head: AnswerHead, body: bytes) -> CorosrvError:
    """Returns the error that a peer has answered with, as it would be if it had happened here."""
    status = head.status
    try:
        words = _errors.decode(body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        words = f"a peer answered {status}"
    kind = _KINDS.get(status, ErrorKind.INVALID_REQUEST if status < 500 else ErrorKind.FAILED)
    seconds = header_of(head, "Retry-After")
    retry_after = int(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 9 else None
    return Fault(words, status, kind.value, retry_after=retry_after).error()


class PeerAnswers:
    """The answers of others to one call. Belongs to the hub's thread."""

    def __init__(self, call: DelegatedCall | SiblingCall, job: InferJob, max_bytes: int) -> None:
        """Takes a call that was started. `max_bytes`: of an answer, or of an event, which is held in memory."""
        target = job.target
        name, version = (target.name, target.version) if isinstance(target, ModelTarget) else ("", "")
        self._is_question = isinstance(job.request, ForwardRequest)  # whose answer goes on as it came
        self.card = HandlerCard(name, version)
        self.is_replayed = False
        self._call = call
        self._max_bytes = max_bytes
        self._head = AnswerHead()
        self._held = bytearray()  # of the answer, or of an event that is not whole
        self._end: AskEnd | None = None  # of a stream

    def cancel(self) -> None:
        self._call.reader.cancel()

    def close(self) -> None:
        self._call.reader.close()

    def __iter__(self) -> Iterator[InferItem]:
        """Yields the answers and their InferEnd. Waits."""
        try:
            for item in self._call.reader:
                if isinstance(item, AnswerHead):
                    self._head = item
                    self.is_replayed = header_of(item, "Idempotency-Replayed") == "true"
                elif isinstance(item, AnswerBody):
                    yield from self._take(item.data)
                elif isinstance(item, InferEnd):
                    yield from self._finish(item.error)
        except CorosrvError as error:
            yield InferEnd(error)

    @property
    def _is_stream(self) -> bool:
        return self._head.status == 200 and media_type(self._head.headers) == EVENT_STREAM

    def _take(self, data: bytes) -> Iterator[InferOutputs]:
        """Holds a part of the body; yields what the events in it bring."""
        n_searched = max(len(self._held) - 1, 0)
        self._held += data
        end = self._held.rfind(b"\n\n", n_searched) if self._is_stream else -1
        if end >= 0:
            whole = bytes(self._held[:end])
            del self._held[: end + 2]
            for event in whole.split(b"\n\n"):
                if event.startswith(_DATA) and (outputs := self._outputs_of(event.removeprefix(_DATA))) is not None:
                    yield outputs
        if len(self._held) > self._max_bytes:
            raise AnswerTooLarge(self._max_bytes)

    def _outputs_of(self, event: bytes) -> InferOutputs | None:
        """Returns the answer in an event; None for the end. Raises WorkerLost for an event that is none."""
        try:
            message = decode_event(event)
        except (msgspec.MsgspecError, UnicodeDecodeError, Refused):
            raise self._lost("broke its stream off") from None
        if isinstance(message, AskEnd):
            self._end = message
            return None
        self.card, outputs = message
        return outputs

    def _finish(self, error: CorosrvError | None) -> Iterator[InferItem]:
        call = self._call
        if error is not None and call.refusal is not None and error is call.own_error:
            error = error_of(call.refusal.head, call.refusal.body)  # which says more than this server can
        elif error is None and self._head.status != 200:
            error = error_of(self._head, bytes(self._held))
        elif error is None and self._is_stream:
            if self._end is None:
                raise self._lost("broke its stream off")
            error = None if self._end.fault is None else self._end.fault.error()
        elif error is None:
            yield AnswerBody(data=bytes(self._held)) if self._is_question else self._answer()
        yield InferEnd(error)

    def _answer(self) -> InferOutputs:
        """Reads a whole answer. Raises WorkerLost for one that is none."""
        try:
            self.card, outputs = decode_answer(bytes(self._held), header_of(self._head, LENGTH_HEADER) or None)
        except (msgspec.MsgspecError, UnicodeDecodeError, Refused):
            raise self._lost("gave an answer that is none") from None
        return outputs

    def _lost(self, words: str) -> WorkerLost:
        who = f"the replica {self._call.served_by}" if self._call.served_by else "another worker process"
        return WorkerLost(f"{who} {words}")


_PIECE = 1 << 16  # bytes


class SiblingCall:
    """A call that another worker process of this server answers, over a connection of its own."""

    refusal: PeerRefusal | None = None
    own_error: CorosrvError | None = None
    served_by = ""

    def __init__(self, connection: HTTPConnection, request: ForwardRequest) -> None:
        """`connection`: closed with this."""
        self._connection = connection
        self._request = request
        self._is_cancelled = False

    @property
    def reader(self) -> SiblingCall:
        return self

    def __iter__(self) -> Iterator[InferItem]:
        """Sends the call; yields the items of its answer, the last of which is an InferEnd. Waits."""
        connection, request = self._connection, self._request
        try:
            connection.request(request.method, request.path, request.body, dict(request.headers))
            answer = connection.getresponse()
            yield AnswerHead(status=answer.status, headers=tuple(answer.getheaders()))
            while piece := answer.read1(_PIECE):
                yield AnswerBody(data=piece)
            yield InferEnd()
        except (OSError, HTTPException) as error:
            lost = WorkerLost(f"another worker process had the call, and was lost: {error}")
            yield InferEnd(CallCancelled("the call was cancelled") if self._is_cancelled else lost)

    def cancel(self) -> None:
        self._is_cancelled = True
        with contextlib.suppress(OSError):  # it has ended
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()
