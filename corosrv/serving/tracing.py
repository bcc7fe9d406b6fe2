"""Traces by OpenTelemetry: spans of requests and of their parts, which are sent to a collector over OTLP.

Imported only where traces are on. What the standard variables OTEL_* say holds: where the collector is, how many
requests are traced, what the server is called. A collector that is slow, hangs or is away costs spans, which are
counted, and nothing else: they wait in a bounded queue that a thread (under gevent, a greenlet) empties.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base import __version__
from corosrv.base.errors import SettingsError
from corosrv.web.http.reply import Flood

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise SettingsError(f"COROSRV_TRACES needs OpenTelemetry ({missing}): pip install 'corosrv[otel]'") from missing

log = logging.getLogger("corosrv.traces")

MOST_WAITING = 8192  # spans
MOST_SENT = 128  # spans of one message, whose encoding holds the hub for some milliseconds
PAUSE = 1.0  # seconds in which spans are gathered
FAREWELL = 2.0  # seconds in which the last spans have to be sent at the end
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_SERVICE = "inference.GRPCInferenceService"
_MOST_CHARACTERS = 256  # of a client's text in an attribute
_HEADERS = {"traceparent": "HTTP_TRACEPARENT", "tracestate": "HTTP_TRACESTATE"}

_context = TraceContextTextMapPropagator()


class Exporter(Protocol):
    """Sends spans; waits for the collector."""

    def export(self, spans: Sequence[ReadableSpan]) -> Any: ...

    def shutdown(self) -> None:
        """Gives up what is being sent."""


class SpanQueue(SpanProcessor):
    """Spans on their way to the collector. At most MOST_WAITING wait; more are dropped.

    Its thread begins with the first span, in the process that serves.
    """

    def __init__(self, exporter: Exporter) -> None:
        self.n_sent = self.n_dropped = self.n_failed = 0
        self._exporter = exporter
        self._waiting: deque[ReadableSpan] = deque()
        self._news = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._flood = Flood(log, "%d spans were dropped: the collector of traces is too slow, or away")
        self._n_sending = 0
        self._is_failing = False

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def on_end(self, span: ReadableSpan) -> None:
        """Takes a span. Never waits."""
        if span.context is None or not span.context.trace_flags.sampled or self._end.is_set():
            return
        if len(self._waiting) >= MOST_WAITING:
            self.n_dropped += 1
            self._flood.count()
            return
        self._waiting.append(span)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="corosrv-traces", daemon=True)
            self._thread.start()
        self._news.set()

    def _run(self) -> None:
        while not (self._end.is_set() and not self._waiting):
            self._news.wait()
            self._news.clear()
            self._end.wait(PAUSE)
            while self._waiting:
                n = min(len(self._waiting), MOST_SENT)
                self._send([self._waiting.popleft() for _ in range(n)])

    def _send(self, spans: list[ReadableSpan]) -> None:
        self._n_sending = len(spans)
        why = "it did not take them in time"
        try:
            is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # whatever it is, later spans may be sent
            is_sent, why = False, str(error)
        self._n_sending = 0
        if is_sent:
            self.n_sent += len(spans)
        else:
            self.n_failed += len(spans)
        if is_sent is self._is_failing:  # told once, and once when it is over
            self._is_failing = not is_sent
            if is_sent:
                log.warning("spans reach the collector of traces again")
            elif not self._end.is_set():
                log.warning("spans cannot be sent to the collector of traces, and are dropped: %s", why)

    def close(self, seconds: float) -> None:
        """Sends what waits, if that takes no longer than this. Waits. Twice is harmless."""
        self._end.set()
        self._news.set()
        if self._thread is None or threading.current_thread() is self._thread:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            n_lost = len(self._waiting) + self._n_sending
            log.warning("%d spans were dropped at the end: the collector of traces does not answer", n_lost)
            self.n_dropped += len(self._waiting)
            self._waiting.clear()
            self._exporter.shutdown()


class SpanCollector(Collector):
    """Reads at each scrape what became of spans."""

    def __init__(self, spans: SpanMaker) -> None:
        self._spans = spans

    def collect(self) -> Iterable[Metric]:
        queue = self._spans.queue
        ended = CounterMetricFamily("corosrv_trace_spans", "Spans by what became of them", labels=["outcome"])
        for outcome in ("sent", "failed", "dropped"):
            ended.add_metric([outcome], getattr(queue, f"n_{outcome}"))
        yield ended
        yield GaugeMetricFamily("corosrv_trace_spans_waiting", "Spans that wait for the collector", queue.n_waiting)


class SpanMaker:
    """Makes the spans of a process; see corosrv.web.http.access_log.Tracer. Make it in the process that serves."""

    def __init__(self, make_exporter: Callable[[], Exporter] = OTLPSpanExporter) -> None:
        """Raises SettingsError for variables OTEL_* that cannot be used."""
        _check_variables()
        # Its own lines come for each try, in a form of their own; what is lost is counted and told here.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        try:
            self.queue = SpanQueue(make_exporter())
        except Exception as error:  # whatever a library raises for a variable
            raise SettingsError(
                f"COROSRV_TRACES: the exporter cannot be set up by the variables OTEL_*: {error}"
            ) from error
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(self.queue)
        self._tracer = provider.get_tracer("corosrv", __version__)

    def begin_request(self, environ: dict[str, Any]) -> SpanTrace:
        """Begins the span of a request, under its client's if that is named. Whoever gets the headers goes on."""
        carrier = {name: environ[field] for name, field in _HEADERS.items() if field in environ}
        method = environ["REQUEST_METHOD"]
        known = method if method in _METHODS else "_OTHER"
        span = self._tracer.start_span(
            known if known != "_OTHER" else "HTTP",
            _context.extract(carrier),
            SpanKind.SERVER,
            {
                "http.request.method": known,
                "url.path": _path(environ),
                "url.scheme": environ.get("wsgi.url_scheme", "http"),
                "network.protocol.version": environ.get("SERVER_PROTOCOL", "").partition("/")[2],
                "server.address": environ.get("SERVER_NAME", ""),
                "server.port": int(environ.get("SERVER_PORT") or 0),
                "client.address": environ.get("REMOTE_ADDR", ""),
                "user_agent.original": environ.get("HTTP_USER_AGENT", "")[:_MOST_CHARACTERS],
            },
        )
        trace = SpanTrace(self._tracer, span)
        for field in _HEADERS.values():
            environ.pop(field, None)
        environ.update((_HEADERS[name], value) for name, value in trace.headers())
        return trace

    def begin_call(self, headers: Mapping[str, str], is_stream: bool) -> SpanTrace:
        """Begins the span of a call over gRPC, under its client's if the metadata name that."""
        method = "ModelStreamInfer" if is_stream else "ModelInfer"
        attributes = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method}
        context = _context.extract(dict(headers))
        return SpanTrace(
            self._tracer, self._tracer.start_span(f"{_SERVICE}/{method}", context, SpanKind.SERVER, attributes)
        )

    def close(self) -> None:
        """Sends the last spans. Waits, FAREWELL seconds at most."""
        self.queue.close(FAREWELL)


class SpanTrace:
    """A span as a TracePart; see corosrv.contracts.jobs.terms."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Any) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)

    @property
    def trace_id(self) -> str:
        number = self._span.get_span_context().trace_id  # 0 where OTEL_SDK_DISABLED says so
        return f"{number:032x}" if number else ""

    def name_model(self, model: str) -> None:
        """Does nothing: the parts of a request name it."""

    def begin(self, name: str, attributes: Mapping[str, Any], *, is_client: bool = False) -> SpanTrace:
        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        return SpanTrace(self._tracer, self._tracer.start_span(name, self._context, kind, dict(attributes)))

    def add_past(self, name: str, ago: float, seconds: float, attributes: Mapping[str, Any] | None = None) -> None:
        began = time.time_ns() - int(ago * 1e9)
        span = self._tracer.start_span(name, self._context, SpanKind.INTERNAL, dict(attributes or {}), start_time=began)
        span.end(began + int(seconds * 1e9))

    def headers(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        _context.inject(carrier, self._context)
        return tuple(carrier.items())

    def end(self, attributes: Mapping[str, Any] | None = None, error: str = "") -> None:
        span = self._span
        if attributes:
            span.set_attributes(dict(attributes))
            if (route := attributes.get("http.route")) and isinstance(span, Span):
                span.update_name(f"{span.name} {route}")
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _path(environ: Mapping[str, Any]) -> str:
    """Returns the path without the query, in which keys may stand."""
    return f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"[:_MOST_CHARACTERS]


def _check_variables() -> None:
    """Raises SettingsError for what the exporter would take and never send a span with."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if (url := os.environ.get(name, "")) and not url.startswith(("http://", "https://")):
            raise SettingsError(f"{name} must be an http or https URL, not {url!r}")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := os.environ.get(name, "")) not in ("", "http/protobuf"):
            raise SettingsError(f"{name}: spans are sent over http/protobuf, not over {protocol!r}")


def _resource() -> Resource:
    """Describes this process; a name that the operator chose stays."""
    resource = Resource.create({"process.pid": os.getpid(), "host.name": socket.gethostname()})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "corosrv", "service.version": __version__}))
    return resource
