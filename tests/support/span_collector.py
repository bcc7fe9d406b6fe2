"""A collector of traces: a real HTTP server in a thread, which takes spans over OTLP as OpenTelemetry's does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.waiting import eventually


@dataclass(frozen=True)
class GotSpan:
    """One span, as it was sent."""

    trace_id: str
    id: str
    parent: str
    name: str
    kind: int
    seconds: float
    attributes: dict[str, Any]
    is_error: bool
    service: str
    state: str  # of tracestate


class SpanReceiver:
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[GotSpan] = []
        self.paths: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.add(self.path)
                receiver.spans.extend(spans_of(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def wait_for_child(self, trace_id: str, parent: str, kind: int = 2) -> GotSpan:
        """Returns the span of a server beneath another one once it is there; its own parts came before it."""

        def find() -> GotSpan | None:
            spans = list(self.spans)
            wanted = (trace_id, parent, kind)
            return next((span for span in spans if (span.trace_id, span.parent, span.kind) == wanted), None)

        found = eventually(find, what=f"a span of trace {trace_id}")
        assert found is not None
        return found

    def children(self, parent: GotSpan) -> dict[str, GotSpan]:
        return {span.name: span for span in list(self.spans) if span.parent == parent.id}


def spans_of(message: bytes) -> Iterator[GotSpan]:
    for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
        service = next((_value(a.value) for a in resource.resource.attributes if a.key == "service.name"), "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield GotSpan(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.kind,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    {attribute.key: _value(attribute.value) for attribute in span.attributes},
                    span.status.code == 2,
                    service,
                    span.trace_state,
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(member) for member in found.values] if kind == "array_value" else found


@contextmanager
def collecting() -> Iterator[SpanReceiver]:
    """A collector, until the block is left."""
    receiver = SpanReceiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join(10)
        receiver.server.server_close()
