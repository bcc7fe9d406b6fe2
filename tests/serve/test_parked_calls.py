"""Calls that wait among many clients: they need no greenlet meanwhile, and are answered as all others."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.web.http import served_client
from tests.serve.server import Server, Servers
from tests.serve.wire import Connection
from tests.support.waiting import eventually

APP = str(Path(__file__).parent.parent / "apps" / "plain.py") + ":app"
SLEEP = "/v2/models/sleep/infer"
ROUTE = "/v2/models/<name>/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Servers(tmp_path_factory.mktemp("parked"), tmp_path_factory.mktemp("parked-cache"))
    try:
        yield started.start(COROSRV_MODEL="", worker_app=APP)
    finally:
        started.stop()


@pytest.fixture
def crowd(server: Server) -> Iterator[None]:
    """As many clients as it takes for those that wait to be parked. The server hangs up on idle ones after a while."""
    with contextlib.ExitStack() as stack:
        for _ in range(served_client.MANY + 1):
            stack.enter_context(server.connect())
        yield


@pytest.fixture
def busy(server: Server, crowd: None) -> Iterator[Connection]:
    """A client whose call keeps the only slot until it leaves."""
    with server.connect() as client:
        begin(client, 600)
        server.wait_metric('calls_in_flight{key="model:sleep:"}', 1)
        yield client
        client.leave()
        server.wait_metric('calls_in_flight{key="model:sleep:"}', 0)


def begin(client: Connection, seconds: float, path: str = SLEEP, **headers: str) -> None:
    """Sends a call, without waiting for its answer."""
    body = json.dumps({"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [seconds]}]}).encode()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    client.send(head.encode() + body)


def wait_for_depth(server: Server, depth: int) -> None:
    server.wait_metric('queue_depth{key="model:sleep:"}', depth)


def n_answers(server: Server, status: int) -> float:
    return server.metrics().get(f'corosrv_http_requests_total{{route="{ROUTE}",status="{status}"}}', 0)


def test_a_call_that_waited_is_answered_and_its_connection_serves_the_next(server: Server, busy: Connection) -> None:
    n_before = n_answers(server, 200)
    with server.connect() as client:
        begin(client, 0, X_Request_Id="mine", Origin="http://127.0.0.1:1")
        wait_for_depth(server, 1)
        busy.leave()

        answer = client.answer("POST")

        assert (answer.status, answer.json["model_name"]) == (200, "sleep")
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["content-type"] == "application/json"
        assert client.ask("GET", "/v2/health/live").status == 200
    assert n_answers(server, 200) == n_before + 1


def test_health_and_unknown_models_are_answered_while_every_handler_is_busy(server: Server, busy: Connection) -> None:
    with server.connect() as waiting, server.connect() as client:
        begin(waiting, 600)
        wait_for_depth(server, 1)

        assert client.ask("GET", "/v2/health/live").json == {"live": True}
        assert client.ask("GET", "/v2/health/ready").json == {"ready": True, "live": True}
        assert client.ask("GET", "/v2/models/sleep/ready").json == {"name": "sleep", "ready": True}
        assert client.ask("POST", "/v2/models/nobody/infer", {"inputs": []}).status == 404
        waiting.leave()


def test_requests_sent_ahead_are_answered_in_order(server: Server, busy: Connection) -> None:
    with server.connect() as client:
        begin(client, 0)
        begin(client, 0, path="/v2/models/nobody/infer")
        begin(client, 0)
        wait_for_depth(server, 1)
        busy.leave()

        assert [client.answer("POST").status for _ in range(3)] == [200, 404, 200]


def test_a_client_that_leaves_has_its_waiting_call_cancelled(server: Server, busy: Connection) -> None:
    n_before = n_answers(server, 499)
    with server.connect() as client:
        begin(client, 0)
        wait_for_depth(server, 1)
        client.leave()

        wait_for_depth(server, 0)
    eventually(lambda: n_answers(server, 499) == n_before + 1)


def test_an_error_behind_the_wait_has_its_status_its_form_and_its_count(server: Server, busy: Connection) -> None:
    n_before = n_answers(server, 504)
    with server.connect() as client:
        begin(client, 0, X_Request_Timeout_Ms="300")

        answer = client.answer("POST")

        assert answer.status == 504
        assert set(answer.json) == {"error"}
        assert answer.headers["x-request-id"]
        assert client.ask("GET", "/v2/health/live").status == 200
    assert n_answers(server, 504) == n_before + 1


def test_a_server_that_stops_answers_calls_that_wait(start: Servers) -> None:
    server = start.start(COROSRV_MODEL="", worker_app=APP)
    with contextlib.ExitStack() as stack:
        for _ in range(served_client.MANY + 1):
            stack.enter_context(server.connect())
        first, second = (stack.enter_context(server.connect()) for _ in range(2))
        begin(first, 3)
        begin(second, 0)
        wait_for_depth(server, 1)

        server.signal(signal.SIGTERM)

        answers = [client.answer("POST") for client in (first, second)]
    assert [answer.status for answer in answers] == [200, 200]
    assert {answer.headers["connection"] for answer in answers} == {"close"}
