"""Traces: the spans that a real collector gets of requests through real servers, and collectors that do not answer."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.fronts import front
from tests.serve.server import REPOSITORY, SERVE, Servers
from tests.serve.test_grpc import APP, grpc_port, infer
from tests.serve.wire import CHAT, chat
from tests.support.span_collector import SpanReceiver, collecting
from tests.support.waiting import eventually

CLIENTS_TRACE, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01", "tracestate": "a=1"}
SERVER_KIND, CLIENT_KIND = 2, 3
GREET = """
from corosrv.worker import App, TensorSpec

app = App("greet")
HEADERS = [TensorSpec("headers", "BYTES", [-1])]

@app.model("traced", outputs=HEADERS)
def traced(request, context):
    return {"headers": [context.trace_headers.get("traceparent", "none").encode()]}

@app.model("outer", outputs=HEADERS)
def outer(request, context):
    return {"headers": context.call(model="traced")["headers"].data}
"""
PREDICTOR = """
from corosrv.worker import BasePredictor, current_scope

class Predictor(BasePredictor):
    def predict(self) -> str:
        return current_scope().context.get("traceparent", "none")
"""


@pytest.fixture
def collector() -> Iterator[SpanReceiver]:
    with collecting() as receiver:
        yield receiver


def traced(collector: SpanReceiver) -> dict[str, Any]:
    """The settings of a server whose spans go there."""
    return {"traces": 1, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "NO_PROXY": "127.0.0.1"}


def test_a_chat_has_spans_of_its_request_and_of_each_part_of_its_job(start: Servers, collector: SpanReceiver) -> None:
    server = start.start(*SERVE, access_log="json", log_level="debug", **traced(collector))
    with server.connect() as client:
        assert client.post(chat("a secret", max_tokens=5, stream=True), f"{CHAT}?api_key=sk-1", CLIENT).status == 200

    request = collector.wait_for(f"POST {CHAT}")
    job = collector.children(request)["chat synthetic"]
    parts = collector.children(job)
    assert (request.trace_id, request.parent, request.kind) == (CLIENTS_TRACE, CLIENTS_SPAN, SERVER_KIND)
    assert request.service == "corosrv"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == CHAT
    assert request.attributes["corosrv.end"] == "complete"
    told = {name: value for name, value in job.attributes.items() if name.startswith("gen_ai.")}
    assert told == {
        "gen_ai.provider.name": "corosrv",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "synthetic",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": pytest.approx(0.8),
        "gen_ai.request.max_tokens": 5,
        "gen_ai.response.model": "synthetic",
        "gen_ai.usage.input_tokens": told["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert told["gen_ai.usage.input_tokens"] > 5
    assert set(parts) == {"queue", "prefill", "decode"}
    assert sum(part.seconds for part in parts.values()) == pytest.approx(job.seconds, abs=0.05)
    assert request.seconds >= job.seconds >= parts["decode"].seconds > 0.05
    assert not any("secret" in str(span) or "sk-1" in str(span) for span in collector.spans)
    assert collector.paths == {"/v1/traces"}
    logged = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    assert [line["path"] for line in logged if line["trace"] == CLIENTS_TRACE] == [f"{CHAT}?api_key=***"]
    assert re.search(rf"job \S+ of model synthetic ended: .* trace {CLIENTS_TRACE}", server.log)


def test_a_refused_request_and_a_job_that_fails_are_told(start: Servers, collector: SpanReceiver) -> None:
    server = start.start(*SERVE, ctx=1024, **traced(collector))
    with server.connect() as client:
        assert client.post(chat("word " * 5000)).status == 400
        assert client.ask("GET", "/nothing/5").status == 404

    failed, request = collector.wait_for("chat synthetic"), collector.wait_for(f"POST {CHAT}")
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "PromptTooLong")
    assert (request.is_error, request.attributes["http.response.status_code"]) == (False, 400)
    assert collector.wait_for("GET").attributes["http.response.status_code"] == 404  # a path of no route names none


def test_an_upstream_goes_on_with_the_trace(start: Servers, collector: SpanReceiver) -> None:
    upstream = start.start(*SERVE, model="small=synthetic:?tokens_per_s=50", **traced(collector))
    with front(start, f"http://127.0.0.1:{upstream.port}", **traced(collector)) as forwarding:
        with forwarding.server.connect() as client:
            assert client.post(chat(model="small", max_tokens=2), CHAT, CLIENT).status == 200
        eventually(lambda: len([span for span in collector.spans if span.name == f"POST {CHAT}"]) == 2)

    outer = next(span for span in collector.spans if span.parent == CLIENTS_SPAN)
    (call,) = (span for span in collector.children(outer).values() if span.kind == CLIENT_KIND)
    inner = collector.children(call)[f"POST {CHAT}"]
    assert call.name == "call small"
    assert {outer.trace_id, call.trace_id, inner.trace_id} == {CLIENTS_TRACE}
    assert "chat small" in collector.children(inner)


def test_handlers_and_the_calls_that_they_make_go_on_with_the_trace(
    start: Servers, collector: SpanReceiver, tmp_path: Path
) -> None:
    (tmp_path / "greet.py").write_text(GREET)
    server = start.start(
        *SERVE, f"{tmp_path}/greet.py:app", model="", run_dir=tmp_path / "run", worker_max=2, **traced(collector)
    )
    with server.connect() as client:
        answer = client.post({"inputs": []}, "/v2/models/outer/infer", CLIENT)
    assert answer.status == 200, answer.body
    _, trace, parent, _ = answer.json["outputs"][0]["data"][0].split("-")

    inner = collector.wait_for("call traced")
    outer = collector.wait_for("call outer")
    request = collector.wait_for("POST /v2/models/<name>/infer")
    assert (trace, parent) == (CLIENTS_TRACE, inner.id)
    assert (inner.parent, outer.parent, request.parent) == (outer.id, request.id, CLIENTS_SPAN)


def test_calls_over_grpc_have_traces(start: Servers, collector: SpanReceiver, tmp_path: Path) -> None:
    server = start.start(model="", worker_app=APP, grpc_port=0, run_dir=tmp_path / "run", **traced(collector))

    infer(grpc_port(server), CLIENT)

    request = collector.wait_for("inference.GRPCInferenceService/ModelInfer")
    assert (request.trace_id, request.parent, request.kind) == (CLIENTS_TRACE, CLIENTS_SPAN, SERVER_KIND)
    assert set(collector.children(request)) == {"call add"}


def test_predictors_go_on_with_the_trace(start_predictor: StartPredictor, collector: SpanReceiver) -> None:
    settings = {f"COROSRV_{name.upper()}" if name.islower() else name: of for name, of in traced(collector).items()}
    server = start_predictor(PREDICTOR, command=SERVE, **settings)

    answer = server.ask("POST", "/predictions", {"input": {}}, CLIENT)

    _, trace, parent, _ = answer.json["output"].split("-")
    assert (trace, parent) == (CLIENTS_TRACE, collector.wait_for("predict").id)


def test_each_worker_process_sends_its_spans(start: Servers, collector: SpanReceiver, tmp_path: Path) -> None:
    server = start.start(*SERVE, "-w", "2", run_dir=tmp_path / "run", **traced(collector))
    with server.connect() as client:
        assert client.post(chat(max_tokens=2), CHAT, CLIENT).status == 200

    request = collector.wait_for(f"POST {CHAT}")
    assert set(collector.children(collector.children(request)["chat synthetic"])) == {"queue", "prefill", "decode"}


def test_a_collector_that_hangs_delays_neither_answers_nor_the_end(start: Servers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}"
        server = start.start(*SERVE, traces=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, NO_PROXY="127.0.0.1")
        connection, _ = silent.accept()  # with the spans of looks at /health, and gets no answer
        with server.connect() as client:
            assert client.post(chat(max_tokens=2)).status == 200
        assert server.metric("hub_blocked_total") == 0
        assert server.metric("trace_spans_waiting") > 0

        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - began < 8
        connection.close()

    assert re.search(r"[1-9]\d* spans were dropped at the end", server.log)


def test_a_server_without_the_package_says_what_is_missing(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('not here')")

    server = start.start(*SERVE, wait_for=None, traces=1, PYTHONPATH=tmp_path)

    assert server.wait(20) == 1
    assert "corosrv cannot start: COROSRV_TRACES needs OpenTelemetry" in server.log
    assert "pip install 'corosrv[otel]'" in server.log


@pytest.mark.parametrize("style", ["gevent", "flask"])
def test_a_mounted_server_traces_its_own_routes(start: Servers, collector: SpanReceiver, style: str) -> None:
    app = REPOSITORY / "deploy" / "example_app.py"
    commands = {
        "gevent": ("gunicorn", "-k", "gevent", "--no-control-socket", "-b", "127.0.0.1:0", "--chdir", str(app.parent),
                   "example_app:app"),
        "flask": ("flask", "--app", str(app), "run", "--port", "0"),
    }  # fmt: skip
    server = start.start(*commands[style], wait_for=None, **traced(collector))
    server.wait_until("ok", prefix="/llm")
    with server.connect() as client:
        assert client.post(chat(max_tokens=3, stream=True), f"/llm{CHAT}", CLIENT).status == 200

    request = collector.wait_for(f"POST /llm{CHAT}")
    assert request.parent == CLIENTS_SPAN
    assert request.seconds >= collector.children(request)["chat synthetic"].seconds > 0.03
