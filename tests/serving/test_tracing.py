"""Spans on their way to a collector: what waits is bounded, what is lost is counted, and the end does not wait long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from corosrv.base.errors import SettingsError
from corosrv.serving import tracing
from corosrv.serving.tracing import SpanMaker
from tests.support.patched import run_patched
from tests.support.span_collector import GotSpan, spans_of
from tests.support.waiting import eventually


class Taking:
    """Keeps the spans that it is sent; says what the test says, once it is let go."""

    def __init__(self) -> None:
        self.spans: list[GotSpan] = []
        self.answer = ""
        self.may_go = threading.Event()
        self.may_go.set()

    def send(self, message: bytes) -> str:
        assert self.may_go.wait(30)
        self.spans += spans_of(message)
        return self.answer


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taking]:
    monkeypatch.setattr(tracing, "PAUSE", 0.01)
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    found = Taking()
    yield found
    found.may_go.set()


def begin(maker: SpanMaker, **fields: str) -> tuple[tracing.SpanTrace, dict[str, Any]]:
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1", "QUERY_STRING": "key=secret", **fields}
    return maker.begin_request(environ), environ


def test_spans_are_sent_and_counted(taking: Taking) -> None:
    maker = SpanMaker(taking.send)
    begin(maker)[0].end()

    eventually(lambda: maker.queue.n_sent == 1)
    assert "secret" not in str(taking.spans)
    maker.close()


def first_span_ends_in_the_hub() -> list[Any]:
    """Ends a process's first span in a callback of its hub. Returns what that raised and the number of spans sent."""
    sent: list[bytes] = []
    raised: list[str] = []

    def send(message: bytes) -> str:
        sent.append(message)
        return ""

    maker = SpanMaker(send)
    span, _ = begin(maker)

    def end() -> None:
        try:
            span.end()
        except BaseException as error:  # the hub would print it and go on
            raised.append(repr(error))

    gevent.get_hub().loop.run_callback(end)
    gevent.sleep(0)
    maker.close()
    return [raised, len(sent)]


def test_the_first_span_may_end_in_a_callback_of_the_hub() -> None:
    assert run_patched(first_span_ends_in_the_hub) == [[], 1]


def test_spans_are_encoded_as_opentelemetry_decodes_them(taking: Taking) -> None:
    maker = SpanMaker(taking.send)
    values = {"text": "é" * 300, "yes": True, "one": 1, "large": 2**40, "half": 0.5, "several": ("a", "b"), "empty": ""}
    request, _ = begin(maker, HTTP_TRACEPARENT=f"00-{'a' * 32}-{'b' * 16}-01", HTTP_TRACESTATE="x=1")
    call = request.begin("a part " * 30, values, is_client=True)
    call.add_past("earlier", 2.0, 0.5, {"no": False})
    call.end({"one": 2}, "Lost")
    request.end({"http.route": "/v1"})
    eventually(lambda: maker.queue.n_sent == 3)
    maker.close()

    past, part, root = taking.spans
    assert (root.trace_id, root.parent, root.name, root.kind, root.is_error) == (
        "a" * 32,
        "b" * 16,
        "POST /v1",
        2,
        False,
    )
    assert (part.trace_id, part.parent, part.name, part.kind, part.is_error) == (
        "a" * 32,
        root.id,
        "a part " * 30,
        3,
        True,
    )
    assert (past.parent, past.name, past.kind, past.attributes) == (part.id, "earlier", 1, {"no": False})
    assert part.attributes == {**values, "one": 2, "several": ["a", "b"], "error.type": "Lost"}
    assert past.seconds == pytest.approx(0.5)
    assert 0 <= part.seconds <= root.seconds < 5
    assert root.service == "corosrv"
    assert part.state == "x=1"


def test_more_than_may_wait_are_dropped_and_the_end_gives_up(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_WAITING", 10)
    monkeypatch.setattr(tracing, "MOST_SENT", 5)
    monkeypatch.setattr(tracing, "FAREWELL", 0.1)
    taking.may_go.clear()
    maker = SpanMaker(taking.send)
    for _ in range(40):
        begin(maker)[0].end()

    assert maker.queue.n_waiting <= 10
    assert maker.queue.n_dropped >= 25
    began = time.monotonic()
    maker.close()
    assert time.monotonic() - began < 5
    assert maker.queue.n_waiting == 0


def test_what_a_collector_refuses_is_counted_and_told_once(taking: Taking, caplog: pytest.LogCaptureFixture) -> None:
    taking.answer = "it answered 503"
    maker = SpanMaker(taking.send)
    for n in range(1, 4):
        begin(maker)[0].end()
        eventually(lambda n=n: maker.queue.n_failed == n)  # type: ignore[misc]
    taking.answer = ""
    begin(maker)[0].end()
    eventually(lambda: maker.queue.n_sent == 1)

    told = [record.getMessage() for record in caplog.records if record.name == "corosrv.traces"]
    assert [text.partition(" to")[0] for text in told] == [
        "spans cannot be sent",
        "spans reach the collector of traces again",
    ]
    maker.close()


def test_a_client_s_trace_goes_on_and_a_broken_one_is_replaced(taking: Taking) -> None:
    maker = SpanMaker(taking.send)
    good, environ = begin(maker, HTTP_TRACEPARENT=f"00-{'a' * 32}-{'b' * 16}-01", HTTP_TRACESTATE="x=1")
    assert good.trace_id == "a" * 32
    assert environ["HTTP_TRACEPARENT"].startswith(f"00-{'a' * 32}-")
    assert "b" * 16 not in environ["HTTP_TRACEPARENT"]
    assert environ["HTTP_TRACESTATE"] == "x=1"

    for broken in ("", "00-0-0-01", f"00-{'0' * 32}-{'b' * 16}-01", "x" * 5000):
        fresh, environ = begin(maker, HTTP_TRACEPARENT=broken, HTTP_TRACESTATE="x=1")
        assert environ["HTTP_TRACEPARENT"].startswith(f"00-{fresh.trace_id}-")
        assert "HTTP_TRACESTATE" not in environ
    maker.close()


def test_what_a_client_does_not_want_traced_is_not_sent_and_goes_on_so(taking: Taking) -> None:
    maker = SpanMaker(taking.send)
    trace, environ = begin(maker, HTTP_TRACEPARENT=f"00-{'a' * 32}-{'b' * 16}-00")
    trace.begin("part", {}).end()
    trace.add_past("earlier", 1.0, 0.5)
    trace.end()

    assert environ["HTTP_TRACEPARENT"].endswith("-00")
    assert maker.queue.n_waiting == 0
    maker.close()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "must be an http or https URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost", "must be an http or https URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "are sent over http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "are sent as they are"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "long", "must be a number"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/file", "cannot be read"),
    ],
)
def test_variables_that_cannot_be_used_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match=f"{variable}.*{words}"):
        SpanMaker()
