"""Forwards requests to upstreams: looks into their bodies, queues them, and passes the answers on.

Errors have the form that the clients of a path expect: OpenAI's or Anthropic's. Plain requests are answered without
Flask (`DirectForwarding`), whose share of a short chat would be a quarter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from flask import Response, g, request
from werkzeug.http import HTTP_STATUS_CODES

from corosrv.base.errors import CorosrvError
from corosrv.contracts.idempotency import HEADER
from corosrv.contracts.jobs.infer import ForwardRequest, InferReader
from corosrv.contracts.jobs.terms import FIRST_PRIORITY, Terms
from corosrv.dialects.anthropic import answers as anthropic_answers
from corosrv.dialects.anthropic import routes as anthropic
from corosrv.dialects.generation.call import event, named_event
from corosrv.dialects.ollama import answers as ollama_errors
from corosrv.dialects.ollama import routes as ollama
from corosrv.dialects.openai import events as openai_errors
from corosrv.fleet.upstreams.pool import UpstreamPool
from corosrv.gateway.forwarding.answers import AnswerPassing, PassedAnswer
from corosrv.gateway.forwarding.event_join import EventJoin
from corosrv.gateway.forwarding.grouped import GroupedReader
from corosrv.gateway.forwarding.headers import request_headers
from corosrv.gateway.forwarding.homes import NotingReader, ResponseHomes, makes_responses
from corosrv.gateway.forwarding.peek import BY_PATH, MAX_SESSION, ForwardedPath, Peeked, peek
from corosrv.gateway.forwarding.streamed_body import as_stream
from corosrv.web.groups import GROUP, GroupMember, GroupTable, join_group
from corosrv.web.http.access import Entrance
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import AnyRequest, BareRequest, Visit, caller, current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.terms import request_terms, visit_terms
from corosrv.web.kept.streams import CONVERSATION_FIELD

log = logging.getLogger("corosrv.http")

_ANTHROPIC_ID = "Request-Id"  # a header of answers in Anthropic's form


def error_body(error: CorosrvError, path: str) -> Any:
    """Makes the body of an error that ends the current request."""
    if ollama.has_path(path):
        return ollama_errors.error_body(error)
    return anthropic.error_body(error) if anthropic.has_path(path) else openai_errors.body(error)


def error_event(error: CorosrvError, *, is_anthropic: bool, request_id: str) -> bytes:
    """Makes the event of an error that ends a stream."""
    if is_anthropic:
        return named_event("error", anthropic_answers.body(error, request_id))
    return event(openai_errors.body(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """Options of forwarding; see the settings of the same names."""

    max_body_bytes: int
    write_timeout: float
    passes_keys: bool  # clients' keys go on: this server asks for none
    keeps_answers: bool = True  # repeated requests are answered here, so their idempotency keys do not go on
    reads_prompts: bool = False  # upstreams are found by the beginning of the prompt
    reads_sessions: bool = False  # a body may name its session, not the header alone


class Forwarder:
    """Forwards the request at hand."""

    def __init__(
        self,
        pool: UpstreamPool,
        bodies: BodyReader,
        stats: HttpStats,
        options: ForwardOptions,
        groups: GroupTable | None = None,
    ) -> None:
        """`groups`: those that requests are in."""
        self._pool = pool
        self._groups = GroupTable() if groups is None else groups
        self._bodies = bodies
        self._stats = stats
        self._options = options
        self.homes = ResponseHomes()

    @property
    def max_body_bytes(self) -> int:
        return self._options.max_body_bytes

    def read(self) -> tuple[bytes, Peeked]:
        """Reads the request's body ahead of whoever answers it, and looks into it.

        Waits; raises Refused for one that is no JSON object.
        """
        body = self._bodies.read_ahead(current(request), self._options.max_body_bytes)
        return body, peek(body, reads_prompt=self._options.reads_prompts)

    def forward_question(self, path: ForwardedPath, model: str | None) -> Response:
        """Sends a GET on, before requests that generate. Waits; see AnswerPassing and UpstreamPool.submit."""
        return self.forward(path, b"", Peeked(model, FIRST_PRIORITY, ""), "GET")

    def forward(self, path: ForwardedPath, body: bytes, peeked: Peeked, method: str = "POST") -> Response:
        """Sends the request on and answers with what comes back. Waits; see AnswerPassing and UpstreamPool.submit."""
        incoming = current(request)
        member = join_group(self._groups)
        answer = self._send(path, incoming, body, peeked, request_terms(peeked.priority), member, method).response()
        if path.is_anthropic:
            answer.headers[_ANTHROPIC_ID] = str(current(g).get("corosrv_request_id", ""))
        return answer

    def forward_kept(self, path: str, id: str) -> Response | None:
        """Sends a question about the response of this id on to the upstream that made it for the caller.

        Returns None where none is known to have. Waits; see AnswerPassing and UpstreamPool.ask.
        """
        home = self.homes.find(caller(), id)
        if not home:
            return None
        incoming = current(request)
        is_stream = incoming.args.get("stream") == "true"
        peeked, kept = Peeked(None, None, "", is_stream=is_stream), ForwardedPath(path, "", "")
        passed = self._send(kept, incoming, b"", peeked, request_terms(), method=incoming.method, home=home)
        if incoming.method == "DELETE" and passed.status < HTTPStatus.BAD_REQUEST:
            self.homes.forget(caller(), id)
        return passed.response()

    def forward_changed(
        self,
        path: ForwardedPath,
        body: bytes,
        change: Callable[[InferReader], InferReader],
        make_error: Callable[[CorosrvError], bytes],
    ) -> Response:
        """Sends a body on to another path than that of the request, and answers with what `change` makes of the answer.

        `make_error`: makes the end of a stream that failed. Waits; raises as `forward` does.
        """
        incoming, member = current(request), join_group(self._groups)
        peeked = peek(body, reads_prompt=self._options.reads_prompts)
        terms = request_terms(peeked.priority)
        return self._send(path, incoming, body, peeked, terms, member, change=change, make_error=make_error).response()

    def forward_directly(self, path: ForwardedPath, incoming: BareRequest, visit: Visit) -> PassedAnswer:
        """Sends a request on that asks for nothing which Flask's hooks do; otherwise as `forward`. Waits."""
        body = self._bodies.read(incoming, self._options.max_body_bytes)
        peeked = peek(body, reads_prompt=self._options.reads_prompts)
        answer = self._send(path, incoming, body, peeked, visit_terms(visit, incoming.environ, peeked.priority))
        if path.is_anthropic:
            others = [field for field in answer.headers if field[0].lower() != _ANTHROPIC_ID.lower()]
            answer.headers[:] = [*others, (_ANTHROPIC_ID, visit.request_id)]
        return answer

    def _send(
        self,
        path: ForwardedPath,
        incoming: AnyRequest,
        body: bytes,
        peeked: Peeked,
        terms: Terms,
        member: GroupMember | None = None,
        method: str = "POST",
        *,
        change: Callable[[InferReader], InferReader] | None = None,
        make_error: Callable[[CorosrvError], bytes] | None = None,
        home: str = "",
    ) -> PassedAnswer:
        environ, options = incoming.environ, self._options
        session = environ.get("HTTP_X_SESSION_ID", "")[:MAX_SESSION]
        if not session and options.reads_sessions:
            session = peeked.session
        if member is not None:
            session = session or f"group {member.name}"  # its answers come from one upstream where that can be
        join = None if member is None else as_stream(path.path, body)
        query = environ.get("QUERY_STRING", "")
        forwarded = ForwardRequest(
            method=method,
            path=f"{path.path}?{query}" if query else path.path,
            headers=request_headers(
                environ,
                terms.request_id,
                passes_keys=options.passes_keys,
                passes_idempotency=not options.keeps_answers,
            ),
            body=body if join is None else join[0],
            prompt=peeked.prompt,
        )
        terms = replace(terms, session=session) if session else terms
        if home:
            reader = self._pool.ask(home, forwarded, terms)
        else:
            keeper = self.homes.find(terms.caller, peeked.previous_response)
            reader = self._submit(peeked.model, forwarded, terms, keeper, member, join and join[1])
        if change is not None:
            reader = change(reader)
        make_error = make_error or partial(error_event, is_anthropic=path.is_anthropic, request_id=terms.request_id)
        hold = partial(self._bodies.hold, incoming)
        passing = AnswerPassing(
            incoming, reader, make_error, options.write_timeout, self._stats, hold, is_stream=peeked.is_stream
        )
        return passing.passed()

    def _submit(
        self,
        model: str | None,
        forwarded: ForwardRequest,
        terms: Terms,
        keeper: str,
        member: GroupMember | None,
        join: EventJoin | None,
    ) -> InferReader:
        try:
            reader = self._pool.submit(model, forwarded, terms, keeper)
            if makes_responses(forwarded.path):
                reader = NotingReader(reader, partial(self.homes.note, terms.caller))
            return reader if member is None else GroupedReader(reader, member, join)
        except BaseException:
            if member is not None:
                member.leave()
            raise


def _in_environ(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


_NOT_PLAIN = frozenset({
    _in_environ(HEADER), _in_environ(GROUP), CONVERSATION_FIELD, _in_environ("Origin"), _in_environ("Content-Encoding"),
})  # fmt: skip
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_OF_STREAMS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
_UNTYPED = ("Content-Type", "text/html; charset=utf-8")  # what Flask makes of an answer that has no type


class DirectForwarding:
    """Forwards plain requests: a Shortcut of a LeanFlask."""

    def __init__(self, forwarder: Forwarder, entrance: Entrance) -> None:
        self._forwarder = forwarder
        self._entrance = entrance

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        path = BY_PATH.get(environ["PATH_INFO"])
        if path is None or not _is_plain(environ):
            return None
        request, entrance = BareRequest(environ), self._entrance
        if (visit := entrance.open(request)) is None:
            return None
        try:
            entrance.admit(request, visit)
            answer = self._forwarder.forward_directly(path, request, visit)
            headers = entrance.headers(visit)
        except Exception as error:
            visit.error = error
            return None
        except BaseException:
            entrance.leave(request, visit, path.path, 0)
            raise
        entrance.leave(request, visit, path.path, answer.status)
        return _begin(answer, headers, environ, start_response)


def _is_plain(environ: Mapping[str, Any]) -> bool:
    return (
        environ["REQUEST_METHOD"] == "POST"
        and not environ.get("SCRIPT_NAME")
        and environ.keys().isdisjoint(_NOT_PLAIN)
        and "CONTENT_LENGTH" in environ
    )


def _begin(
    answer: PassedAnswer, more: list[tuple[str, str]], environ: dict[str, Any], start_response: Any
) -> Iterable[bytes]:
    """Calls `start_response` with the status and all headers of an answer, and returns its body."""
    status, body = answer.status, answer.body
    names = {name.lower() for name, _ in answer.headers}
    if status < HTTPStatus.OK or status in _WITHOUT_BODY or "location" in names:
        response = answer.response()
        response.headers.extend(more)
        return response(environ, start_response)
    headers = [*answer.headers, *more]
    if isinstance(body, bytes):
        if "content-type" not in names:
            headers.append(_UNTYPED)
        headers.append(("Content-Length", str(len(body))))
        start_response(_status_line(status), headers)
        return [body]
    headers += [field for field in _OF_STREAMS if field[0].lower() not in names]
    start_response(_status_line(status), headers)
    body.begin(start_response)
    return body


@lru_cache(64)
def _status_line(status: int) -> str:
    return f"{status} {HTTP_STATUS_CODES.get(status, 'unknown').upper()}"
