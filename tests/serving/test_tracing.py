"""Spans on their way to a collector: what waits is bounded, what is lost is counted, and the end does not wait long."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from corosrv.base.errors import SettingsError
from corosrv.serving import tracing
from corosrv.serving.tracing import SpanMaker
from tests.support.waiting import eventually


class Exporter:
    """Keeps what it is sent; says what the test says, once it is let go."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.result = SpanExportResult.SUCCESS
        self.may_go = threading.Event()
        self.may_go.set()

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        assert self.may_go.wait(30)
        self.spans += spans
        return self.result

    def shutdown(self) -> None:
        self.may_go.set()


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    monkeypatch.setattr(tracing, "PAUSE", 0.01)
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    return Exporter()


def begin(maker: SpanMaker, **fields: str) -> tuple[tracing.SpanTrace, dict[str, Any]]:
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1", "QUERY_STRING": "key=secret", **fields}
    return maker.begin_request(environ), environ


def test_spans_are_sent_and_counted(exporter: Exporter) -> None:
    maker = SpanMaker(lambda: exporter)
    begin(maker)[0].end()

    eventually(lambda: maker.queue.n_sent == 1)
    assert "secret" not in exporter.spans[0].to_json()
    maker.close()


def test_more_than_may_wait_are_dropped_and_the_end_gives_up(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MOST_WAITING", 10)
    monkeypatch.setattr(tracing, "MOST_SENT", 5)
    monkeypatch.setattr(tracing, "FAREWELL", 0.1)
    exporter.may_go.clear()
    maker = SpanMaker(lambda: exporter)
    for _ in range(40):
        begin(maker)[0].end()

    assert maker.queue.n_waiting <= 10
    assert maker.queue.n_dropped >= 25
    began = time.monotonic()
    maker.close()
    assert time.monotonic() - began < 5
    assert maker.queue.n_waiting == 0


def test_what_a_collector_refuses_is_counted_and_told_once(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    exporter.result = SpanExportResult.FAILURE
    maker = SpanMaker(lambda: exporter)
    for n in range(1, 4):
        begin(maker)[0].end()
        eventually(lambda n=n: maker.queue.n_failed == n)  # type: ignore[misc]
    exporter.result = SpanExportResult.SUCCESS
    begin(maker)[0].end()
    eventually(lambda: maker.queue.n_sent == 1)

    told = [record.getMessage() for record in caplog.records if record.name == "corosrv.traces"]
    assert [text.partition(" to")[0] for text in told] == [
        "spans cannot be sent",
        "spans reach the collector of traces again",
    ]
    maker.close()


def test_a_client_s_trace_goes_on_and_a_broken_one_is_replaced(exporter: Exporter) -> None:
    maker = SpanMaker(lambda: exporter)
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


def test_what_a_client_does_not_want_traced_is_not_sent_and_goes_on_so(exporter: Exporter) -> None:
    maker = SpanMaker(lambda: exporter)
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
    ],
)
def test_variables_that_cannot_be_used_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match=f"{variable}.*{words}"):
        SpanMaker()
