"""Streams that clients come back to: each is written to a log by a greenlet of its own, and read from there.

A client comes back by the same request with its Idempotency-Key, or by the id of its conversation (`/v1/stream`). It
says which event it had last, or gets all of them. Names of logs are their caller's own.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import gevent
import msgspec
from flask import Blueprint, Request, Response, request
from msgspec import Meta

from corosrv.base.errors import CorosrvError, NotFound, Refused
from corosrv.web.http import body_reader, sse
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.openapi import operation
from corosrv.web.http.reply import json_response
from corosrv.web.kept.answer_log import AnswerLog, FollowedEvents, LogName, StreamReader
from corosrv.web.kept.answer_logs import AnswerLogs

log = logging.getLogger("corosrv.http")

CONVERSATION = "X-Conversation-Id"
LAST_EVENT = "Last-Event-ID"
MAX_NAME = 255  # characters

CONVERSATION_FIELD = "HTTP_X_CONVERSATION_ID"  # in WSGI's words
_LAST_EVENT_FIELD = "HTTP_LAST_EVENT_ID"
_CONVERSATION = "conversation"  # the kind of name
_PLAIN = re.compile(rf"[ -~]{{1,{MAX_NAME}}}")
_NUMBER = re.compile(r"[0-9]{1,18}")
# A server that asks for no keys may pass them on: whoever has another one is not given what the first one got.
CREDENTIALS = ("HTTP_AUTHORIZATION", "HTTP_X_API_KEY")


def last_event(environ: Mapping[str, Any]) -> int | None:
    """Returns the number of the last event that a client has; None if it names none. Raises Refused."""
    text = environ.get(_LAST_EVENT_FIELD)
    return None if text is None else parse_number(text.strip(), LAST_EVENT)


def parse_number(text: str, param: str) -> int:
    """Returns the number that a client names. Raises Refused, which names `param`."""
    if not _NUMBER.fullmatch(text):
        raise Refused(f"{param} must be a number from 0 on, not {text[:40]!r}", param)
    return int(text)


def conversation_of(environ: Mapping[str, Any]) -> str:
    """Returns the id of the conversation that a request names; empty if it names none. Raises Refused."""
    text = environ.get(CONVERSATION_FIELD)
    return "" if text is None else _conversation(text, CONVERSATION)


def _conversation(text: str, param: str) -> str:
    if not _PLAIN.fullmatch(text):
        raise Refused(f"{param}: must be 1 to {MAX_NAME} characters of printable ASCII", param)
    return text


def stream_not_found(param: str) -> NotFound:
    """Makes the error for a stream that was never here, is forgotten, or is another caller's."""
    words = "no stream of this name runs here, or ended lately enough to be remembered"
    return NotFound(f"{words}; send the request without {param}" if param == LAST_EVENT else words, param,
                    "stream_not_found")  # fmt: skip


def scoped(environ: Mapping[str, Any], kind: str, name: str) -> LogName:
    """Makes the name of a log that no other caller's requests have, whether or not this server asks for keys."""
    shown = [str(environ.get(field, "")) for field in CREDENTIALS]
    is_own = caller() or not any(shown)
    return (kind, "" if is_own else hashlib.sha256(repr(shown).encode()).hexdigest(), name)


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """A request by what it asks for, and the names that its answer is kept under.

    `key`: under which it is kept when it has ended; `after`: the last event that its client has, if it says so.
    """

    key: str
    names: tuple[LogName, ...]
    digest: bytes
    after: int | None


class ResumableStreams:
    """Makes streams that clients may come back to, and the answers of those who do."""

    def __init__(self, logs: AnswerLogs, write_timeout: float, stats: HttpStats) -> None:
        """`write_timeout`: seconds that a client may accept nothing."""
        self.logs = logs
        self._limits = sse.StreamLimits(stats, -1, write_timeout)

    def find(self, name: LogName) -> AnswerLog | None:
        """Returns the log of the current request's caller that has this name."""
        return self.logs.owned_by(caller()).find(name)

    def call(self, view: Callable[[], Response]) -> Response:
        """Calls a view whose stream, if it makes one, is for `keep`. Raises TooManyLogs, and what the view does."""
        self.logs.owned_by(caller()).check_room()
        environ = current(request).environ
        environ[sse.LOGGED] = True
        try:
            return view()
        finally:
            environ.pop(sse.LOGGED, None)

    def keep(
        self,
        response: Response,
        names: Iterable[LogName],
        digest: bytes = b"",
        recording: sse.Recording | None = None,
        *,
        needs_client: bool = True,
    ) -> AnswerLog:
        """Writes a response's stream to a log, from which the response reads from now on. Returns at once.

        `digest`: of what was asked; `recording`: gets a copy; `needs_client`: the answer ends when all have left.
        """
        source: Any = response.response
        if isinstance(source.reader, StreamReader):  # it reads a log already
            answer = source.reader.answer
        else:
            answer = self.logs.owned_by(caller()).open(digest, source.cancel, is_lines=response.mimetype == sse.LINES)
            answer.head = (response.status_code, tuple(response.headers))
            answer.needs_client = needs_client
            gevent.spawn(_write, source, answer)
            response.response = self._stream(answer.follow(0, LAST_EVENT))
        if recording is not None:
            answer.recording, answer.digest = recording, digest
        for name in names:
            if (other := self.find(name)) is not None and other is not answer:
                other.cancel()  # this one takes its place
        self.logs.owned_by(caller()).name(answer, names)
        return answer

    def _stream(self, reader: StreamReader) -> sse.EventStream[Any]:
        # Without comments of its own: those that fill silence are in the log, so that bytes can be counted.
        environ = current(request).environ
        return sse.EventStream(environ, reader, b"", FollowedEvents(reader.answer), self._limits)

    def response(self, reader: StreamReader) -> Response:
        """Makes the answer of a client that comes back."""
        response = sse.response(self._stream(reader))
        status, headers = reader.answer.head
        response.status_code = status
        for name, value in headers:
            response.headers[name] = value
        return response

    def repeat(self, asking: NamedRequest) -> Response | None:
        """Answers a request that is repeated from the log of the first one: while that runs, and afterwards for who
        says what it had. None if there is no such log, or it is of another request. Raises EventsGone and Refused.

        Who only names a conversation again asks for its next turn.
        """
        for kind, answer in [(name[0], self.find(name)) for name in asking.names]:
            if answer is None or answer.digest != asking.digest:
                continue
            if asking.after is not None or (kind == "key" and not answer.is_ended):
                response = self.response(answer.follow(asking.after or 0, LAST_EVENT))
                response.headers["Idempotency-Replayed"] = "true"
                return response
        return None


def _write(source: sse.EventStream[Any], answer: AnswerLog) -> None:
    """Writes a stream to its log, and to a recording, until it ends. Waits."""
    recording = answer.recording
    try:
        with closing(source):
            for number, piece in enumerate(source):
                events = answer.write(piece)
                if recording is not None and not (number and source.fills_silence(piece)):
                    recording.add(events)
                answer.wait_for_room()
            if recording is not None and not source.has_failed:
                recording.finish()
    except Exception:  # a bug: the stream ends here, and those who read it are told
        log.exception("an answer could not be finished")
        answer.write_error(CorosrvError("the answer could not be finished"))
    finally:
        if recording is not None:
            recording.drop()
        answer.end()


class ConversationQuery(msgspec.Struct):
    """Members of the query of a stream that is stopped."""

    conv_id: str


class StreamQuery(ConversationQuery):
    """Members of the query of a stream that is read on."""

    from_: int = msgspec.field(name="from", default=0)


class LookupBody(msgspec.Struct):
    conversation_ids: Annotated[list[str], Meta(max_length=1024)]


class FoundStream(msgspec.Struct):
    """A stream of a conversation; times are Unix time, `completed_at` 0 while it runs."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


_lookup_decoder = msgspec.json.Decoder(LookupBody)
_MODEL_MARK = "::"  # in front of the model, with which llama-server's page ends the names of streams


def blueprint(streams: ResumableStreams, bodies: BodyReader, max_body_bytes: int) -> Blueprint:
    """The routes that llama-server has for streams of conversations."""
    routes = Blueprint("streams", __name__)

    @routes.get("/v1/stream")
    @operation(
        "Streams",
        "Read a stream on",
        "The stream of the request that named this conversation in `X-Conversation-Id`: from its first byte, behind "
        "`from` bytes, or behind the event that `Last-Event-ID` names; then what is yet to come. Kept for some minutes "
        "after its end.",
        media_type="text/event-stream",
        statuses=(400, 404, 410),
        query=StreamQuery,
    )
    def read_on() -> Response:
        incoming = current(request)
        answer = streams.find(_name(incoming))
        if answer is None:
            raise stream_not_found("conv_id")
        after = last_event(incoming.environ)
        if after is not None:
            return streams.response(answer.follow(after, LAST_EVENT))
        return streams.response(answer.follow_bytes(parse_number(incoming.args.get("from") or "0", "from"), "from"))

    @routes.delete("/v1/stream")
    @operation(
        "Streams",
        "Stop a stream",
        "Ends the request that named this conversation, if it runs, and forgets its stream. The answer is 204, also "
        "where there is nothing of that name.",
        media_type="",
        statuses=(400,),
        query=ConversationQuery,
    )
    def stop() -> Response:
        answer = streams.find(_name(current(request)))
        if answer is not None:
            answer.cancel()
            answer.drop()
        return Response(status=204)

    @routes.post("/v1/streams/lookup")
    @operation(
        "Streams",
        "Look for streams",
        "Tells which of these conversations have a stream that can be read on, `ID::MODEL` among those of `ID`.",
        body=LookupBody,
        answer=list[FoundStream],
        statuses=(400,),
    )
    def look() -> Response:
        incoming = current(request)
        body = body_reader.decode(incoming, bodies.read(incoming, max_body_bytes), _lookup_decoder)
        wanted = set(body.conversation_ids)
        kind, scope, _ = scoped(incoming.environ, _CONVERSATION, "")
        return json_response(
            [
                _describe(name[2], answer)
                for name, answer in streams.logs.owned_by(caller()).list_names()
                if name[:2] == (kind, scope) and not wanted.isdisjoint((name[2], name[2].partition(_MODEL_MARK)[0]))
            ]
        )

    return routes


def _describe(conversation: str, answer: AnswerLog) -> FoundStream:
    date, now = int(time.time()), answer.now()
    ended = date - int(now - answer.ended_at) if answer.is_ended else 0
    began = date - int(now - answer.began_at)
    return FoundStream(conversation, answer.is_ended, answer.n_stream_bytes, began, ended)


def _name(incoming: Request) -> LogName:
    conversation = incoming.args.get("conv_id", "")
    return scoped(incoming.environ, _CONVERSATION, _conversation(conversation, "conv_id"))
