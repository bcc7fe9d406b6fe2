"""A line of log for each request that has ended, as text or as JSON, and the end of its trace.

A request's trace is in its WSGI environment from its begin on; everything that knows more of the request tells it.
What clients send is escaped, so that each request has one line, and keys in URLs are hidden.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, TextIO

import msgspec

from corosrv.contracts.jobs.infer import Headers
from corosrv.contracts.jobs.terms import TRACE, TracePart
from corosrv.contracts.metrics import JobExemplars
from corosrv.web.http.access import without_secrets
from corosrv.web.http.lean_flask import Visit
from corosrv.web.http.reply import line

_LONGEST = 1000  # characters of a path and its query
COMPLETE, CLIENT_GONE, ERROR = "complete", "client_gone", "error"  # how answers end
_TEXT = "%(time)s %(client)s %(method)s %(path)s %(status)d %(bytes)s B %(ms).1f ms %(end)s id=%(id)s"


class Tracer(Protocol):
    """Makes the spans of requests."""

    @property
    def job_exemplars(self) -> JobExemplars:
        """The exemplars of the times of jobs."""

    def begin_request(self, environ: dict[str, Any]) -> TracePart:
        """Begins the span of a request, which the environment's headers name from now on."""

    def begin_call(self, headers: Mapping[str, str], is_stream: bool) -> TracePart:
        """Begins the span of a call over gRPC, under its client's."""


class RequestTrace:
    """A request, for its line in the access log and for its span, if it has one; a TracePart of its terms.

    `is_ended_here`: the web server does not tell when its answer has been sent, so that the answer has to.
    """

    __slots__ = ("began", "client", "id", "is_ended_here", "key", "method", "model", "route", "span", "target")

    def __init__(self, environ: dict[str, Any], span: TracePart | None) -> None:
        self.began = time.monotonic()
        self.client = str(environ.get("REMOTE_ADDR") or "unix")
        self.method = str(environ["REQUEST_METHOD"])
        self.target = _target(environ)
        self.id = self.key = self.model = self.route = ""
        self.is_ended_here = False
        self.span = span

    @property
    def trace_id(self) -> str:
        return "" if self.span is None else self.span.trace_id

    def describe(self, visit: Visit, route: str) -> None:
        """Takes what is known of the request by the time of its answer."""
        self.id, self.route = visit.request_id, route
        self.key = "" if visit.account is None else visit.account.entry.name

    def name_model(self, model: str) -> None:
        self.model = model

    def begin(self, name: str, attributes: Mapping[str, Any], *, is_client: bool = False) -> TracePart:
        return self if self.span is None else self.span.begin(name, attributes, is_client=is_client)

    def add_past(self, name: str, ago: float, seconds: float, attributes: Mapping[str, Any] | None = None) -> None:
        if self.span is not None:
            self.span.add_past(name, ago, seconds, attributes)

    def headers(self) -> Headers:
        return () if self.span is None else self.span.headers()

    @property
    def exemplar_labels(self) -> Mapping[str, str]:
        return {} if self.span is None else self.span.exemplar_labels

    def note_job(self, model: str, wait: float, first_token: float) -> None:
        if self.span is not None:
            self.span.note_job(model, wait, first_token)

    def end(self, attributes: Mapping[str, Any] | None = None, error: str = "") -> None:
        """Does nothing: AccessLog.end ends a request."""


class AccessLog:
    """Begins the trace of each request of a process, and ends it with a line of log and the end of its span."""

    def __init__(self, form: str, tracer: Tracer | None, out: TextIO | None = None) -> None:
        """`form`: off, text or json. `tracer`: makes a span for each request. `out`: standard output if not given."""
        self._form = form
        self._tracer = tracer
        self._out = out or sys.stdout

    def begin(self, environ: dict[str, Any]) -> RequestTrace:
        """Begins the trace of a request and puts it into its environment."""
        span = None if self._tracer is None else self._tracer.begin_request(environ)
        trace = environ[TRACE] = RequestTrace(environ, span)
        return trace

    def end(self, trace: RequestTrace, status: int, n_bytes: int | None, end: str) -> None:
        """Ends a request. `n_bytes`: sent of the answer's body; None where the web server does not tell."""
        if self._form != "off":
            members = _members(trace, status, n_bytes, end)
            text = _as_json(members) if self._form == "json" else _as_text(members)
            # Whoever read the log is gone, the disk is full, or the output takes no such letters: requests go on.
            with suppress(OSError, ValueError):
                self._out.write(text + "\n")  # by itself: logging would take three times as long
                self._out.flush()
        if trace.span is not None:
            attributes = {"http.response.status_code": status, "corosrv.request_id": trace.id, "corosrv.end": end}
            if trace.route:
                attributes["http.route"] = trace.route
            trace.span.end(attributes, str(status) if status >= 500 else ERROR if end == ERROR else "")


def _target(environ: Mapping[str, Any]) -> str:
    """Returns the path and the query as they came."""
    if raw := environ.get("RAW_URI"):
        return str(raw)
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    query = environ.get("QUERY_STRING", "")
    return f"{path}?{query}" if query else path


def _members(trace: RequestTrace, status: int, n_bytes: int | None, end: str) -> dict[str, Any]:
    now = time.time()
    members = {
        "event": "request_ended",
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z",
        "client": line(trace.client),
        "method": line(trace.method),
        "path": line(without_secrets(trace.target[:_LONGEST]), _LONGEST),
        "status": status,
        "bytes": n_bytes,
        "ms": round(1000 * (time.monotonic() - trace.began), 1),
        "end": end,
        "id": trace.id,
    }
    also = {"key": trace.key, "model": line(trace.model), "trace": trace.trace_id}
    return members | {name: value for name, value in also.items() if value}


def _as_json(members: Mapping[str, Any]) -> str:
    return msgspec.json.encode(members).decode()


def _as_text(members: dict[str, Any]) -> str:
    n_bytes = members["bytes"]
    text = _TEXT % {**members, "bytes": "-" if n_bytes is None else n_bytes, "id": members["id"] or "-"}
    # A quoted value has no blank of its own that could look like the next member.
    return text + "".join(f" {name}={_word(members[name])}" for name in ("key", "model", "trace") if name in members)


def _word(value: str) -> str:
    return msgspec.json.encode(value).decode() if " " in value or '"' in value else value
