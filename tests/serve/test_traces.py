"""Traces: the spans that a real collector gets of requests through real servers, and collectors that do not answer."""

from __future__ import annotations

import json
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.serve.conftest import StartPredictor
from tests.serve.fronts import front
from tests.serve.image_server import Files, png
from tests.serve.image_server import chat as chat_with
from tests.serve.replicas import ports, replica
from tests.serve.server import REPOSITORY, SERVE, START_SECONDS, Server, Servers
from tests.serve.test_grpc import grpc_port, infer
from tests.serve.wire import CHAT, chat
from tests.support.span_collector import SpanReceiver, collecting
from tests.support.waiting import eventually

SERVER_KIND, CLIENT_KIND = 2, 3
GREET = """
from corosrv.worker import App, TensorSpec
INTS = [TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])]

app = App("greet")
HEADERS = [TensorSpec("headers", "BYTES", [-1])]

@app.model("traced", outputs=HEADERS)
def traced(request, context):
    return {"headers": [context.trace_headers.get("traceparent", "none").encode()]}

@app.model("add", inputs=INTS, outputs=[TensorSpec("sum", "INT64", [-1])])
def add(request):
    return {"sum": [1]}

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


def traced(collector: SpanReceiver) -> dict[str, Any]:
    """The settings of a server whose spans go there."""
    return {"traces": 1, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="module")
def collector() -> Iterator[SpanReceiver]:
    with collecting() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: SpanReceiver) -> Server:
    """Two worker processes before one engine."""
    kept: Servers = request.getfixturevalue("_kept")
    folder = tmp_path_factory.mktemp("traced")
    return kept.start(
        *SERVE, "-w", "2", model="small=synthetic:?tokens_per_s=50", ctx=1024, access_log="json", log_level="debug",
        run_dir=folder, **traced(collector),
    )  # fmt: skip


@pytest.fixture(scope="module")
def application(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: SpanReceiver
) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    folder = tmp_path_factory.mktemp("application")
    (folder / "greet.py").write_text(GREET)
    return kept.start(
        *SERVE, f"{folder}/greet.py:app", "--grpc-port", "0", model="", run_dir=folder / "run", **traced(collector)
    )


def new_client() -> dict[str, str]:
    """The headers of a client with a trace of its own."""
    return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01", "tracestate": "a=1"}


def ids(client: dict[str, str]) -> list[str]:
    """The ids of a client's trace and span."""
    return client["traceparent"].split("-")[1:3]


def test_a_chat_has_spans_of_its_request_and_of_each_part_of_its_job(server: Server, collector: SpanReceiver) -> None:
    client = new_client()
    with server.connect() as connection:
        body = chat("a secret", max_tokens=5, stream=True)
        assert connection.post(body, f"{CHAT}?api_key=sk-1", client).status == 200

    request = collector.wait_for_child(*ids(client))
    job = collector.children(request)["chat small"]
    parts = collector.children(job)
    assert (request.name, request.kind) == (f"POST {CHAT}", SERVER_KIND)
    assert request.service == "corosrv"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == CHAT
    assert request.attributes["corosrv.end"] == "complete"
    told = {name: value for name, value in job.attributes.items() if name.startswith("gen_ai.")}
    assert told == {
        "gen_ai.provider.name": "corosrv",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": pytest.approx(0.8),
        "gen_ai.request.max_tokens": 5,
        "gen_ai.response.model": "small",
        "gen_ai.usage.input_tokens": told["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert told["gen_ai.usage.input_tokens"] > 5
    assert set(parts) == {"queue", "prefill", "decode"}
    assert sum(part.seconds for part in parts.values()) <= job.seconds + 0.02  # they follow each other
    assert request.seconds >= job.seconds >= parts["decode"].seconds > 0.05
    assert not any("secret" in str(span) or "sk-1" in str(span) for span in collector.spans)
    assert collector.paths == {"/v1/traces"}
    logged = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    trace_id = ids(client)[0]
    assert [line["path"] for line in logged if line["trace"] == trace_id] == [f"{CHAT}?api_key=***"]
    assert re.search(rf"job \S+ of model small ended: .* trace {trace_id}", server.log)


def exemplars(server: Server) -> dict[str, set[str]]:
    """The ids of the traces in the exemplars of each histogram. Fails for what is no OpenMetrics."""
    with server.connect() as connection:
        asked = connection.ask("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert asked.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(asked.body.decode()):
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
    return found


def test_the_last_traced_jobs_of_all_processes_are_exemplars(server: Server) -> None:
    for n in range(8):  # of both processes
        client = new_client()
        with server.connect() as connection:
            assert connection.post(chat(max_tokens=2, stream=n % 2 == 0), CHAT, client).status == 200
        found = exemplars(server)

        assert ids(client)[0] in found["corosrv_ttft_seconds"]
        assert ids(client)[0] in found["corosrv_queue_wait_seconds"]

    untraced = new_client()
    with server.connect() as connection:
        connection.post(chat(max_tokens=2), CHAT, {"traceparent": untraced["traceparent"][:-1] + "0"})
        plain = connection.ask("GET", "/metrics")
    assert ids(untraced)[0] not in exemplars(server)["corosrv_ttft_seconds"]
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b" # {" not in plain.body


def test_a_refused_request_and_a_job_that_fails_are_told(server: Server, collector: SpanReceiver) -> None:
    refused, unknown = new_client(), new_client()
    with server.connect() as connection:
        assert connection.post(chat("word " * 5000), CHAT, refused).status == 400
        assert connection.ask("GET", "/nothing/5", headers=unknown).status == 404

    request = collector.wait_for_child(*ids(refused))
    failed = collector.children(request)["chat small"]
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "PromptTooLong")
    assert (request.is_error, request.attributes["http.response.status_code"]) == (False, 400)
    assert collector.wait_for_child(*ids(unknown)).name == "GET"  # a path of no route names none


def test_an_upstream_goes_on_with_the_trace(start: Servers, server: Server, collector: SpanReceiver) -> None:
    client = new_client()
    with front(start, f"http://127.0.0.1:{server.port}", **traced(collector)) as forwarding:
        with forwarding.server.connect() as connection:
            assert connection.post(chat(model="small", max_tokens=2), CHAT, client).status == 200
        outer = collector.wait_for_child(*ids(client))
        assert all(
            ids(client)[0] in exemplars(forwarding.server)[f"corosrv_upstream{name}"]
            for name in ("_ttfb_seconds", "_duration_seconds", "s_call_wait_seconds", "s_service_seconds")
        )

    call = collector.children(outer)["call small"]
    inner = collector.wait_for_child(outer.trace_id, call.id)
    assert call.kind == CLIENT_KIND
    assert "chat small" in collector.children(inner)


def test_a_peer_goes_on_with_the_trace(start: Servers, collector: SpanReceiver) -> None:
    client = new_client()
    with (
        ports(2) as (a, b),
        replica(start, "far", a, b.url, model="far=synthetic:", wait_for=None, **traced(collector)) as far,
        replica(start, "near", b, a.url, model="near=synthetic:", **traced(collector)) as near,
    ):
        far.server.wait_until("ok")
        near.wait_peer(a.url, "ready")
        with near.server.connect() as connection:
            answer = connection.post(chat(model="far", max_tokens=2), CHAT, client)
        assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "far")
        outer = collector.wait_for_child(*ids(client))
        inner = collector.wait_for_child(outer.trace_id, outer.id)

    assert outer.seconds >= inner.seconds
    assert "chat far" in collector.children(inner)
    assert "chat far" not in collector.children(outer)


def test_the_encoding_of_images_is_a_part_of_their_job(start: Servers, tmp_path: Path, collector: SpanReceiver) -> None:
    server = Files.write(tmp_path).start(start, **traced(collector))
    with_image, without = new_client(), new_client()
    with server.connect() as connection:
        for client, images in ((with_image, [png()]), (without, [])):
            assert connection.post(chat_with(*images, model="tiny"), CHAT, client).status == 200

    job, plain = (
        collector.children(collector.wait_for_child(*ids(client)))["chat tiny"] for client in (with_image, without)
    )
    parts = collector.children(job)
    assert set(parts) == {"encode", "queue", "prefill", "decode"}
    assert 0 < parts["encode"].seconds < job.seconds
    assert not parts["encode"].is_error
    assert set(collector.children(plain)) == {"queue", "prefill", "decode"}


def test_handlers_and_the_calls_that_they_make_go_on_with_the_trace(
    application: Server, collector: SpanReceiver
) -> None:
    client = new_client()
    with application.connect() as connection:
        answer = connection.post({"inputs": []}, "/v2/models/outer/infer", client)
    assert answer.status == 200, answer.body
    _, trace, parent, _ = answer.json["outputs"][0]["data"][0].split("-")

    request = collector.wait_for_child(*ids(client))
    outer = collector.children(request)["call outer"]
    inner = collector.children(outer)["call traced"]
    assert (trace, parent) == (request.trace_id, inner.id)
    assert request.name == "POST /v2/models/<name>/infer"
    assert all(trace in exemplars(application)[f"corosrv_{name}_seconds"] for name in ("call_wait", "service"))


def test_calls_over_grpc_have_traces(application: Server, collector: SpanReceiver) -> None:
    client = new_client()

    infer(grpc_port(application), client)

    request = collector.wait_for_child(*ids(client))
    assert (request.name, request.kind) == ("inference.GRPCInferenceService/ModelInfer", SERVER_KIND)
    assert set(collector.children(request)) == {"call add"}


def test_predictors_go_on_with_the_trace(start_predictor: StartPredictor, collector: SpanReceiver) -> None:
    settings = {name if name.isupper() else f"COROSRV_{name.upper()}": of for name, of in traced(collector).items()}
    server = start_predictor(PREDICTOR, command=SERVE, COROSRV_ACCESS_LOG="json", **settings)
    client = new_client()

    answer = server.ask("POST", "/predictions", {"input": {}}, client)

    _, trace, parent, _ = answer.json["output"].split("-")
    request = collector.wait_for_child(*ids(client))
    assert (trace, parent) == (request.trace_id, collector.children(request)["predict"].id)
    found = eventually(lambda: re.search(rf"^.*{trace}.*$", server.process.log, re.MULTILINE), what="a line of log")
    line = json.loads(found.group())
    assert (line["status"], Path(line["model"]).name) == (200, "predict.py:Predictor")


def test_a_collector_that_hangs_delays_neither_answers_nor_the_end(start: Servers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}"
        server = start.start(*SERVE, traces=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, NO_PROXY="127.0.0.1")
        connection, _ = silent.accept()  # with the spans of looks at /health, and gets no answer
        began = time.monotonic()
        with server.connect() as client:
            assert client.post(chat(max_tokens=2)).status == 200
        assert time.monotonic() - began < 5  # and not the ten seconds that a collector gets
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

    assert server.wait(START_SECONDS) == 1
    assert "corosrv cannot start: COROSRV_TRACES needs OpenTelemetry" in server.log
    assert "pip install 'corosrv[otel]'" in server.log


def test_a_mounted_server_traces_its_own_routes_under_any_web_server(start: Servers, collector: SpanReceiver) -> None:
    app, client = REPOSITORY / "deploy" / "example_app.py", new_client()
    server = start.start("flask", "--app", str(app), "run", "--port", "0", wait_for=None, **traced(collector))
    server.wait_until("ok", prefix="/llm")
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=3, stream=True), f"/llm{CHAT}", client).status == 200

    request = collector.wait_for_child(*ids(client))
    assert request.name == f"POST /llm{CHAT}"
    assert request.seconds >= collector.children(request)["chat synthetic"].seconds > 0.03
