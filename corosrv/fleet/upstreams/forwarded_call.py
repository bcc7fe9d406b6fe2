"""Runs one call on an upstream, in a greenlet of its own.

A stream ends with its last event (`StreamEnd`): its connection may stay open behind that for as long as it likes.
`UsageReader` reads how many tokens an answer has, where it says so.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from dataclasses import replace
from typing import Protocol

import gevent
from gevent import Greenlet, GreenletExit

from corosrv.base.errors import CallCancelled, CorosrvError, DeadlinePassed, HandlerFailed
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, Headers
from corosrv.fleet.upstreams.aborter import tag
from corosrv.fleet.upstreams.exchange import Exchange
from corosrv.fleet.upstreams.failures import AnsweredError
from corosrv.workers.dispatch.host import CallListener, HandedItem, Permit, RunningCall

log = logging.getLogger("corosrv.upstreams")

_LONGEST_LINE = 64  # bytes; no line that marks an end is longer
_SPACED = re.compile(rb"\n\r?\n")

# A line of its own: in JSON, a line end inside a text is escaped.
_MARK = re.compile(rb"^(?:data: ?\[DONE\]|event: ?message_stop)\r?\n", re.MULTILINE)
_DONE, _STOP = b"[DONE]", b"message_stop"


class StreamEnd:
    """Looks for `data: [DONE]`, by which OpenAI's streams end, and for `message_stop`, the last of Anthropic's."""

    __slots__ = ("_has_mark", "_line")

    def __init__(self) -> None:
        self._line = b""  # the beginning of a line whose end is still to come
        self._has_mark = False

    def feed(self, piece: bytes) -> bool:
        """Returns True once the last event is whole. Touches no socket."""
        text = self._line + piece
        if not self._has_mark:
            match = _MARK.search(text) if _DONE in text or _STOP in text else None
            if match is None:
                if text.endswith(b"\n"):
                    self._line = b""
                    return False
                self._line = text[text.rfind(b"\n") + 1 :]
                if len(self._line) > _LONGEST_LINE:
                    self._line = b"-"  # which begins no mark
                return False
            self._has_mark = True
            text = text[match.end() - 1 :]  # from the line's end on: the next empty line ends the event
        self._line = text[-2:]
        return _SPACED.search(text) is not None


TAIL = 4096  # bytes at the end of an answer in which its usage stands

# As OpenAI, Anthropic and the Responses API have it, and llama-server. Within a text the quotes would be escaped.
_COUNT = re.compile(rb'(?<!\\)"(?:completion_tokens|output_tokens|predicted_n)"[ \t\r\n]*:[ \t\r\n]*([0-9]{1,9})\b')


class UsageReader:
    """Keeps the end of an answer, whatever its form, and finds the count of its tokens there."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        self._tail = piece[-TAIL:] if len(piece) >= TAIL else (self._tail + piece)[-TAIL:]

    def n_tokens(self) -> int | None:
        """Returns the last count that the answer tells; None if it tells none."""
        counts = _COUNT.findall(self._tail)
        return int(counts[-1]) if counts else None


LINGER = 0.25  # seconds in which the body of a stream whose last event has come must end, for its connection to be kept
_TIMEOUT = "X-Request-Timeout-Ms"


class CallUpstream(Protocol):
    """The upstream that a call runs on, as the call sees it."""

    id: str

    def path(self, path: str) -> str:
        """Returns the path of a request on this upstream."""

    def headers(self, headers: Headers = ()) -> Headers:
        """Returns the headers of a request to this upstream."""

    @property
    def takes_aborts(self) -> bool:
        """Tells whether requests can be aborted by their ids."""

    def begin_answer(self, call: ForwardedCall) -> None:
        """Takes the beginning of a call's answer."""

    def end_call(self, call: ForwardedCall, error: CorosrvError | None) -> None:
        """Takes the end of a call, whose permit is free again."""

    def abort_request(self, id: str) -> None:
        """Starts to abort a request. Never waits."""

    def changed(self) -> None:
        """Calls the listeners: a permit is free."""


class ForwardedCall(RunningCall):
    """Runs one call on an upstream, in a greenlet. It ends once, whatever happens."""

    def __init__(
        self,
        upstream: CallUpstream,
        permit: Permit,
        item: HandedItem,
        listener: CallListener,
        exchange: Exchange,
        is_trial: bool,
    ) -> None:
        assert isinstance(item.request, ForwardRequest)
        self.is_trial = is_trial  # and nothing has come yet that decides it
        self.fault = ""  # of the upstream, which went on to the client as its answer
        self.error_body: AnsweredError | None = None  # of an answer that is a fault
        self.caller = item.caller
        self.trace = item.trace
        self.started_at = time.monotonic()
        self.heard_at = self.started_at  # when the upstream sent something last; infinity while nobody listens
        self.n_bytes = 0
        self.usage = UsageReader()
        self._upstream = upstream
        self._permit = permit
        self._request = item.request
        self._deadline = item.deadline
        self._listener = listener
        self._exchange = exchange
        self._stream_end: StreamEnd | None = None  # of an answer that is a stream of events
        self._has_last_event = False
        self._greenlet: Greenlet | None = None
        self._abort_id = ""  # by which the upstream knows the request
        self._error: CorosrvError | None = None  # why it was ended from outside
        self._has_ended = False

    @property
    def request_hash(self) -> int:
        """Returns a number that requests have in common if they ask the same, and seldom otherwise."""
        return hash((self._request.path, self._request.body))

    @property
    def is_complaint(self) -> bool:
        """Tells whether its answer is a 500 that the request itself may have caused; known at its end."""
        return self.error_body is not None and self.error_body.is_well_formed

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.rawlink(lambda greenlet: self._end())  # of one that is killed before it has begun

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        if is_deadline:
            self.fail(DeadlinePassed("the call's time is over"))
        else:
            self.fail(CallCancelled("the call was cancelled"))

    def fail(self, error: CorosrvError) -> None:
        """Ends the call, and the connection that it is on. Never waits."""
        if self._error is None and not self._has_ended and self._greenlet is not None and not self._greenlet.ready():
            self._error = error
            self._greenlet.kill(block=False)

    def _run(self) -> None:
        is_whole = False
        try:
            is_whole = self._forward() or self._linger()
        except CorosrvError as error:
            error.__traceback__ = error.__context__ = None  # whose frames hold the request, and this call
            self._error = self._error or error
        except GreenletExit:
            pass
        except Exception:
            log.exception("a call to upstream %s failed by a bug", self._upstream.id)
            self._error = self._error or HandlerFailed("the call could not be forwarded")
        finally:
            if self._abort_id and not self._has_ended and not is_whole and self._exchange.is_sent:
                self._upstream.abort_request(self._abort_id)
            self._exchange.close(is_whole)
            self._end()  # in the same turn of the hub as the last piece, with which it wakes its reader once

    def _forward(self) -> bool:
        """Passes the answer on. Returns False if its last event came before the body's end."""
        upstream, listener, request = self._upstream, self._listener, self._prepared()
        head = self._exchange.begin(upstream.path(request.path), request, upstream.headers(request.headers))
        self.fault = fault_of(head)
        self.error_body = AnsweredError(head) if self.fault else None
        self._stream_end = StreamEnd() if _is_event_stream(head) else None
        upstream.begin_answer(self)
        listener.on_outputs(0, replace(head, upstream=upstream.id), 0)
        self.heard_at = time.monotonic()
        while not self._exchange.pump(self._pass_on):
            if self._has_last_event:
                return False
            self.heard_at = math.inf  # by its client's fault
            listener.wait_for_room()
            self.heard_at = time.monotonic()
        return True

    def _pass_on(self, piece: bytes) -> bool:
        """Passes a piece of the body on, and returns whether more is wanted. Runs in the hub: it does not wait."""
        self.n_bytes += len(piece)
        self.heard_at = time.monotonic()
        self.usage.feed(piece)
        if self.error_body is not None:
            self.error_body.feed(piece)
        self._listener.on_outputs(0, AnswerBody(data=piece), len(piece))
        self._has_last_event = self._stream_end is not None and self._stream_end.feed(piece)
        return not self._has_last_event

    def _linger(self) -> bool:
        """Ends the call, and returns whether the answer's body ends soon as well. Waits, LINGER seconds at most."""
        self._end()
        with gevent.Timeout(LINGER, False):
            while not self._exchange.pump(_forget):
                pass
            return True
        return False

    def _prepared(self) -> ForwardRequest:
        """Returns the request as it is sent: with the time that is left, and with an id where it can be aborted."""
        request = self._request
        if self._deadline is not None:
            request = replace(request, headers=with_timeout(request.headers, self._deadline - time.monotonic()))
        if self.trace is not None and (fields := self.trace.headers()):
            request = replace(request, headers=with_fields(request.headers, fields))
        if self._upstream.takes_aborts:
            id = f"corosrv-{uuid.uuid4().hex}"
            body = tag(request.path, request.body, id)
            if body is not None:
                self._abort_id = id
                request = replace(request, body=body)
        return request

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        upstream = self._upstream
        self._permit.release()
        upstream.end_call(self, self._error)
        try:
            self._listener.on_end(0, self._error)
        finally:
            upstream.changed()


def _forget(piece: bytes) -> bool:
    return True


def with_timeout(headers: Headers, seconds: float) -> Headers:
    """Returns headers that give a request the time that is left of its own."""
    return with_fields(headers, ((_TIMEOUT, str(max(math.ceil(seconds * 1000), 1))),))


def with_fields(headers: Headers, fields: Headers) -> Headers:
    """Returns headers with these fields in place of those of the same names."""
    names = {name.lower() for name, _ in fields}
    return (*(field for field in headers if field[0].lower() not in names), *fields)


def fault_of(head: AnswerHead) -> str:
    """Returns why an answer that goes on to the client says that its upstream is not well; an empty text otherwise."""
    return f"it answered {head.status}" if head.status >= 500 and head.status != 501 else ""


def _is_event_stream(head: AnswerHead) -> bool:
    for name, value in head.headers:
        if name.lower() == "content-type" and value.lower().startswith("text/event-stream"):
            return True
    return False
