"""Passes the answer of an upstream on: a stream of events or lines piece by piece, anything else in one piece.

A stream is cut behind whole events, so that one which breaks off does so between two events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from flask import Response

from corosrv.base.errors import ClientGone, CorosrvError, WorkerLost
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, InferEnd, InferItem, InferReader
from corosrv.gateway.forwarding.headers import answer_headers, media_type
from corosrv.web.http import sse
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.lean_flask import AnyRequest
from corosrv.web.http.metrics import HttpStats
from corosrv.web.kept.keyed_answers import is_keyed, keep_if

MAX_HELD = 1 << 20  # bytes of an event that has not ended

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINE_ENDS = (b"\n",)


class EventBuffer:
    """Holds back the beginning of an event, or of a line, until its end has come."""

    __slots__ = ("_ends", "_held")

    def __init__(self, ends: tuple[bytes, ...] = _ENDS) -> None:
        self._ends = ends
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """Returns the whole events that are there now; one over MAX_HELD is passed on in parts."""
        if not self._held and data.endswith(self._ends[0]):
            return data
        data = self._held + data
        end = max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in self._ends)
        if len(data) - end > MAX_HELD:
            end = len(data)
        self._held = data[end:]
        return data[:end]

    def drain(self) -> bytes:
        """Returns what is held: the end of a stream may lack its last empty line."""
        held, self._held = self._held, b""
        return held


UPSTREAM = "X-Corosrv-Upstream"  # a header of errors: the id of the upstream that they come from
MAX_ANSWER = 64 << 20  # bytes of an answer that is no stream
EVENT_STREAM = sse.EVENTS
_STREAMS = {sse.EVENTS: _ENDS, sse.LINES: _LINE_ENDS}  # and what ends a piece of each
_NO_PINGS = -1.0  # the upstream's own come through
_ERROR = re.compile(rb'"error"\s*:(?!\s*null)')  # what an upstream says of an error, under whatever status


class ForwardedEvents:
    """Makes events of what an upstream sends: its own, as they came, and one for an error that ends the stream."""

    __slots__ = ("_buffer", "_looks", "_make_error", "failure", "has_error")

    def __init__(
        self,
        make_error: Callable[[CorosrvError], bytes],
        *,
        looks_for_errors: bool = False,
        ends: tuple[bytes, ...] = _ENDS,
    ) -> None:
        """`make_error`: makes an event in the form of the path's dialect. `looks_for_errors`: `has_error` is wanted.
        `ends`: what an event may end with."""
        self.failure: CorosrvError | None = None
        self.has_error = False  # the upstream has told of one, in an event of its own
        self._looks = looks_for_errors
        self._buffer = EventBuffer(ends)
        self._make_error = make_error

    def encode(self, items: list[InferItem]) -> bytes:
        events = self._encode(items[0]) if len(items) == 1 else b"".join(map(self._encode, items))
        if self._looks and _ERROR.search(events):
            self.has_error = True
        return events

    def _encode(self, item: InferItem) -> bytes:
        if isinstance(item, AnswerBody):
            return self._buffer.add(item.data)
        if not isinstance(item, InferEnd):
            return b""
        if item.error is None:
            return self._buffer.drain()
        self.failure = item.error
        return self._make_error(item.error)

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._make_error(error)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PassedAnswer:
    """An answer that goes on to the client: whole, or as a stream that has begun."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | sse.EventStream[InferItem]

    def response(self) -> Response:
        """Makes Flask's response of it."""
        if isinstance(self.body, bytes):
            return Response(self.body, self.status, self.headers)
        answer = sse.response(self.body)
        answer.status_code = self.status
        return _with_headers(answer, self.headers)


class AnswerPassing:
    """Passes one answer on. Owns the reader of the call."""

    def __init__(
        self,
        request: AnyRequest,
        reader: InferReader,
        make_error: Callable[[CorosrvError], bytes],
        write_timeout: float,
        stats: HttpStats,
        hold: Callable[[int], None],
        *,
        is_stream: bool = False,
    ) -> None:
        """`hold`: counts bytes that are kept until the request is over; raises TooManyBodies. `is_stream`: a stream was
        asked for."""
        self._request = request
        self._watched = sse.watched(request.environ) if is_stream else request.environ
        self._reader = reader
        self._make_error = make_error
        self._write_timeout = write_timeout
        self._stats = stats
        self._hold = hold

    def response(self) -> Response:
        """Makes Flask's response of `passed`. Waits; raises what that does."""
        return self.passed().response()

    def passed(self) -> PassedAnswer:
        """Returns the answer once it has begun, or is there as a whole where it is no stream. Waits.

        A client that leaves meanwhile cancels the call. Raises ClientGone, the error that has ended the call,
        WorkerLost for an answer that cannot be passed on, and TooManyBodies.
        """
        watch = ClientWatch(self._watched, self._reader.cancel)
        try:
            head, items = self._begin(watch)
            ends = _STREAMS.get(media_type(head.headers))
            headers = answer_headers(head.headers)
            body = self._collect(items, watch) if ends is None else b""
        except BaseException:
            self._reader.close()
            raise
        finally:
            watch.close()
        if ends is not None:
            return self._stream(head, headers, items, ends)
        self._reader.close()
        if is_keyed(self._request) and _ERROR.search(body):
            keep_if(lambda: False)
        if head.status >= 400 and head.upstream:
            headers.append((UPSTREAM, head.upstream))
        if head.status == 404 and head.upstream:
            body = _naming(head.upstream, body)
        return PassedAnswer(head.status, headers, body)

    def _begin(self, watch: ClientWatch) -> tuple[AnswerHead, list[InferItem]]:
        """Returns the head of the answer, and what came along with it."""
        first, *others = self._reader.take()
        if watch.is_gone:
            raise ClientGone("the client left before an upstream answered")
        if isinstance(first, AnswerHead):
            return first, others
        error = first.error if isinstance(first, InferEnd) else None
        error = error or WorkerLost("the upstream gave no answer")
        try:
            raise error
        finally:
            del error, first  # which would hold this frame, and the request, until garbage is collected

    def _collect(self, items: list[InferItem], watch: ClientWatch) -> bytes:
        pieces: list[bytes] = []
        n_bytes = 0
        while True:
            for piece in _pieces(items):
                self._hold(len(piece))
                pieces.append(piece)
                n_bytes += len(piece)
            if n_bytes > MAX_ANSWER:
                raise WorkerLost(f"the upstream's answer is over the {MAX_ANSWER} bytes that are passed on at once")
            if self._reader.is_finished:
                return b"".join(pieces)
            items = self._reader.take()
            if watch.is_gone:
                raise ClientGone("the client left before its answer was whole")

    def _stream(
        self, head: AnswerHead, headers: list[tuple[str, str]], items: list[InferItem], ends: tuple[bytes, ...]
    ) -> PassedAnswer:
        events = ForwardedEvents(self._make_error, looks_for_errors=is_keyed(self._request), ends=ends)
        if is_keyed(self._request):
            keep_if(lambda: not events.has_error)
        first = events.encode(items)
        limits = sse.StreamLimits(self._stats, _NO_PINGS, self._write_timeout)
        stream = sse.EventStream(self._request.environ, self._reader, first, events, limits)
        return PassedAnswer(head.status, headers, stream)


def _naming(upstream: str, body: bytes) -> bytes:
    """Returns the body of an error whose message names the upstream that it is of; as it is where it has none."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        answer["error"] = f"{upstream} answered: {error}"
    elif isinstance(error, dict) and isinstance(error.get("message"), str):
        error["message"] = f"{upstream} answered: {error['message']}"
    else:
        return body
    return msgspec.json.encode(answer)


def _pieces(items: Iterable[InferItem]) -> Iterable[bytes]:
    """Yields the body's pieces. Raises the error that ends the call."""
    for item in items:
        if isinstance(item, AnswerBody):
            yield item.data
        elif isinstance(item, InferEnd) and item.error is not None:
            raise item.error


def _with_headers(answer: Response, headers: list[tuple[str, str]]) -> Response:
    """Adds headers to an answer, in place of those that it has by itself; several of one name stay several."""
    for name in {name for name, _ in headers}:
        answer.headers.remove(name)
    answer.headers.extend(headers)
    return answer
