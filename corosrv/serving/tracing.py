"""Traces by OpenTelemetry: spans of requests and of their parts, which are sent to a collector over OTLP.

Imported only where traces are on. What the standard variables OTEL_* say holds: where the collector is, how many
requests are traced, what the server is called. A collector that is slow, hangs or is away costs spans, which are
counted, and nothing else: they wait in a bounded queue that a thread (under gevent, a greenlet) empties.

The SDK reads the variables and chooses what is traced. Its own spans and exporter would take the hub a millisecond for
each request, as much as a short chat takes in all; those here take a tenth of that.
"""

from __future__ import annotations

import _thread
import logging
import os
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base import __version__
from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs.worker import BOUNDS
from corosrv.contracts.metrics import Exemplars, JobExemplars, metric
from corosrv.web.http.reply import Flood

try:
    from opentelemetry.context import Context
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.trace import SpanKind, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from corosrv.serving.span_sender import SpanSender
except ImportError as missing:
    raise SettingsError(f"COROSRV_TRACES needs OpenTelemetry ({missing}): pip install 'corosrv[otel]'") from missing

log = logging.getLogger("corosrv.traces")

MOST_WAITING = 8192  # spans
MOST_SENT = 512  # spans of one message, whose encoding holds the hub for some milliseconds
PAUSE = 1.0  # seconds in which spans are gathered
FAREWELL = 2.0  # seconds in which the last spans have to be sent at the end
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_SERVICE = "inference.GRPCInferenceService"
_MOST_CHARACTERS = 256  # of a client's text in an attribute
_HEADERS = {"traceparent": "HTTP_TRACEPARENT", "tracestate": "HTTP_TRACESTATE"}
_NO_ATTRIBUTES: Mapping[str, Any] = {}

_propagator = TraceContextTextMapPropagator()


class SpanQueue:
    """Spans on their way to the collector. At most MOST_WAITING wait; more are dropped.

    Its thread begins with the first span, in the process that serves. That span may have ended in a callback of the
    hub, where nothing may wait, as Thread.start does under gevent: start_new_thread returns at once.
    """

    def __init__(self, send: Callable[[bytes], str], resource: Resource) -> None:
        self.n_sent = self.n_dropped = self.n_failed = 0
        self.job_exemplars: JobExemplars = {}  # of its spans
        self._send_message = send
        attributes = [KeyValue(key=name, value=_value(value)) for name, value in resource.attributes.items()]
        self._resource = ResourceSpans(resource=ResourceMessage(attributes=attributes)).SerializeToString()
        self._waiting: deque[SpanTrace] = deque()
        self._news = threading.Event()
        self._end = threading.Event()
        self._is_started = False
        self._is_over = threading.Event()  # whether the thread has ended
        self._flood = Flood(log, "%d spans were dropped: the collector of traces is too slow, or away")
        self._n_sending = 0
        self._is_failing = False

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def add(self, span: SpanTrace) -> None:
        """Takes a span that has ended. Never waits."""
        if self._end.is_set():
            return
        if len(self._waiting) >= MOST_WAITING:
            self.n_dropped += 1
            self._flood.count()
            return
        self._waiting.append(span)
        if not self._is_started:
            self._is_started = True
            _thread.start_new_thread(self._run, ())
        if not self._news.is_set():
            self._news.set()

    def _run(self) -> None:
        while not (self._end.is_set() and not self._waiting):
            self._news.wait()
            self._end.wait(PAUSE)
            self._news.clear()
            while self._waiting:
                n = min(len(self._waiting), MOST_SENT)
                self._send([self._waiting.popleft() for _ in range(n)])
        self._is_over.set()

    def _send(self, spans: Sequence[SpanTrace]) -> None:
        self._n_sending = len(spans)
        try:
            why = self._send_message(self._encode(spans))
        except Exception as error:  # whatever it is, later spans may be sent
            why = repr(error)
        self._n_sending = 0
        if why:
            self.n_failed += len(spans)
        else:
            self.n_sent += len(spans)
        if bool(why) is self._is_failing:
            return
        self._is_failing = bool(why)  # told once, and once when it is over
        if not why:
            log.warning("spans reach the collector of traces again")
        elif not self._end.is_set():
            log.warning("spans cannot be sent to the collector of traces, and are dropped: %s", why)

    def _encode(self, spans: Sequence[SpanTrace]) -> bytes:
        """Writes an ExportTraceServiceRequest: fields of a message may follow those that were encoded before."""
        of_scope = _SCOPE + b"".join(_field(_SPANS, span.message()) for span in spans)
        return _field(_RESOURCE_SPANS, self._resource + _field(_SCOPE_SPANS, of_scope))

    def close(self, seconds: float) -> None:
        """Sends what waits, if that takes no longer than this. Waits. Twice is harmless."""
        self._end.set()
        self._news.set()
        if not self._is_started:
            return
        if not self._is_over.wait(seconds) and (n_lost := len(self._waiting) + self._n_sending):
            log.warning("%d spans were dropped at the end: the collector of traces does not answer", n_lost)
            self.n_dropped += len(self._waiting)
            self._waiting.clear()


class SpanCollector(Collector):
    """Reads at each scrape what became of spans."""

    def __init__(self, spans: SpanMaker) -> None:
        self._spans = spans

    def collect(self) -> Iterable[Metric]:
        queue = self._spans.queue
        ended = (([outcome], getattr(queue, f"n_{outcome}")) for outcome in ("sent", "failed", "dropped"))
        yield metric(CounterMetricFamily, "corosrv_trace_spans", "Spans by what became of them", ["outcome"], ended)
        yield GaugeMetricFamily("corosrv_trace_spans_waiting", "Spans that wait for the collector", queue.n_waiting)


class SpanMaker:
    """Makes the spans of a process; see corosrv.web.http.access_log.Tracer. Make it in the process that serves."""

    def __init__(self, send: Callable[[bytes], str] | None = None) -> None:
        """`send`: see SpanSender.send. Raises SettingsError for variables OTEL_* that cannot be used."""
        self.queue = SpanQueue(SpanSender().send if send is None else send, _resource())
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"

    @property
    def job_exemplars(self) -> JobExemplars:
        return self.queue.job_exemplars

    def begin_request(self, environ: dict[str, Any]) -> SpanTrace:
        """Begins the span of a request, under its client's if that is named. Whoever gets the headers goes on."""
        carrier = {name: environ.pop(field) for name, field in _HEADERS.items() if field in environ}
        method = environ["REQUEST_METHOD"]
        if method not in _METHODS:
            method = "_OTHER"
        attributes = {
            "http.request.method": method,
            "url.path": _path(environ),
            "url.scheme": environ.get("wsgi.url_scheme", "http"),
            "network.protocol.version": environ.get("SERVER_PROTOCOL", "").partition("/")[2],
            "server.address": environ.get("SERVER_NAME", ""),
            "server.port": int(environ.get("SERVER_PORT") or 0),
            "client.address": environ.get("REMOTE_ADDR", ""),
            "user_agent.original": environ.get("HTTP_USER_AGENT", "")[:_MOST_CHARACTERS],
        }
        trace = self._begin("HTTP" if method == "_OTHER" else method, carrier, attributes)
        for name, value in trace.headers():
            environ[_HEADERS[name]] = value
        return trace

    def begin_call(self, headers: Mapping[str, str], is_stream: bool) -> SpanTrace:
        """Begins the span of a call over gRPC, under its client's if the metadata name that."""
        method = "ModelStreamInfer" if is_stream else "ModelInfer"
        attributes = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method}
        return self._begin(f"{_SERVICE}/{method}", headers, attributes)

    def _begin(self, name: str, carrier: Mapping[str, str], attributes: dict[str, Any]) -> SpanTrace:
        context = _propagator.extract(carrier) if carrier else Context()
        client = get_current_span(context).get_span_context()
        trace_id = client.trace_id if client.is_valid else random.getrandbits(128) or 1
        chosen = self._sampler.should_sample(context, trace_id, name, SpanKind.SERVER, attributes)
        return SpanTrace(
            self.queue if chosen.decision is Decision.RECORD_AND_SAMPLE and not self._is_disabled else None,
            trace_id,
            client.span_id if client.is_valid else 0,
            chosen.trace_state.to_header() if chosen.trace_state else "",
            name,
            Span.SPAN_KIND_SERVER,
            attributes,
        )

    def close(self) -> None:
        """Sends the last spans. Waits, FAREWELL seconds at most."""
        self.queue.close(FAREWELL)


class SpanTrace:
    """A span as a TracePart; see corosrv.contracts.jobs.terms."""

    __slots__ = (
        "_attributes", "_began", "_ended", "_error", "_id", "_kind", "_name", "_parent", "_queue", "_state", "_trace_id"
    )  # fmt: skip

    def __init__(
        self,
        queue: SpanQueue | None,
        trace_id: int,
        parent: int,
        state: str,
        name: str,
        kind: Span.SpanKind.ValueType,
        attributes: Mapping[str, Any],
    ) -> None:
        """`queue`: takes it at its end; None for one that is not to be sent. `state`: the value of tracestate."""
        self._queue = queue
        self._trace_id = trace_id
        self._id = random.getrandbits(64) or 1
        self._parent = parent
        self._state = state
        self._name = name
        self._kind = kind
        self._attributes = attributes
        self._began = time.time_ns()
        self._ended = 0
        self._error = ""

    @property
    def trace_id(self) -> str:
        return f"{self._trace_id:032x}"

    def name_model(self, model: str) -> None:
        """Does nothing: the parts of a request name it."""

    def begin(self, name: str, attributes: Mapping[str, Any], *, is_client: bool = False) -> SpanTrace:
        kind = Span.SPAN_KIND_CLIENT if is_client else Span.SPAN_KIND_INTERNAL
        return SpanTrace(self._queue, self._trace_id, self._id, self._state, name, kind, attributes)

    def add_past(self, name: str, ago: float, seconds: float, attributes: Mapping[str, Any] | None = None) -> None:
        if self._queue is None:
            return
        part = self.begin(name, attributes or _NO_ATTRIBUTES)
        part._began -= int(ago * 1e9)
        part._ended = part._began + int(seconds * 1e9)
        self._queue.add(part)

    def headers(self) -> tuple[tuple[str, str], ...]:
        flags = 0 if self._queue is None else 1
        parent = ("traceparent", f"00-{self._trace_id:032x}-{self._id:016x}-{flags:02x}")
        return (parent, ("tracestate", self._state)) if self._state else (parent,)

    @property
    def exemplar_labels(self) -> Mapping[str, str]:
        return {} if self._queue is None else {"trace_id": self.trace_id, "span_id": f"{self._id:016x}"}

    def note_job(self, model: str, wait: float, first_token: float) -> None:
        if self._queue is None:
            return
        for name, value in (("queue_wait", wait), ("ttft", first_token)):
            self._queue.job_exemplars.setdefault((model, name), Exemplars(BOUNDS)).note(value, self)

    def end(self, attributes: Mapping[str, Any] | None = None, error: str = "") -> None:
        if self._queue is None or self._ended:
            return
        self._ended = time.time_ns()
        self._error = error
        if attributes:
            self._attributes = {**self._attributes, **attributes}
            if route := attributes.get("http.route"):
                self._name = f"{self._name} {route}"
        self._queue.add(self)

    def message(self) -> bytes:
        """Encodes the span, which has ended."""
        parts = [
            _field(b"\x0a", self._trace_id.to_bytes(16, "big")),
            _field(b"\x12", self._id.to_bytes(8, "big")),
            _name_and_kind(self._name, self._kind),
            _TIMES.pack(b"\x39", self._began, b"\x41", self._ended),
            *(_pair(name, value) for name, value in self._attributes.items()),
        ]
        if self._parent:
            parts.append(_field(b"\x22", self._parent.to_bytes(8, "big")))
        if self._state:
            parts.append(_field(b"\x1a", self._state.encode()))
        if self._error:
            parts += (_pair("error.type", self._error), _FAILED)
        return b"".join(parts)


# Encoded messages, and the tags of their fields, as opentelemetry.proto has them. Only what differs from span to span
# is written here: the library takes five times as long for that.
_SCOPE = ScopeSpans(scope=InstrumentationScope(name="corosrv", version=__version__)).SerializeToString()
_FAILED = Span(status=Status(code=Status.STATUS_CODE_ERROR)).SerializeToString()
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = b"\x0a", b"\x12", b"\x12"
_TIMES = struct.Struct("<cQcQ")  # start_time_unix_nano and end_time_unix_nano


def _field(tag: bytes, content: bytes) -> bytes:
    """Writes a field of bytes or of a message: its tag, its length in groups of 7 bits, its content."""
    n, length = len(content), bytearray()
    while n > 0x7F:
        length.append(n & 0x7F | 0x80)
        n >>= 7
    length.append(n)
    return tag + bytes(length) + content


@lru_cache(1024)
def _name_and_kind(name: str, kind: Span.SpanKind.ValueType) -> bytes:
    return bytes(Span(name=name, kind=kind).SerializeToString())


@lru_cache(4096, typed=True)  # most are the same in all spans
def _pair(name: str, value: Any) -> bytes:
    return bytes(Span(attributes=[KeyValue(key=name, value=_value(value))]).SerializeToString())


def _value(value: Any) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value.encode(errors="replace").decode())
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=map(_value, value)))


def _path(environ: Mapping[str, Any]) -> str:
    """Returns the path without the query, in which keys may stand."""
    return f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"[:_MOST_CHARACTERS]


def _resource() -> Resource:
    """Describes this process; a name that the operator chose stays."""
    resource = Resource.create({"process.pid": os.getpid(), "host.name": socket.gethostname()})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "corosrv", "service.version": __version__}))
    return resource
