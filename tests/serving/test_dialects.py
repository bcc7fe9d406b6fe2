"""A request's way through each dialect, on the synthetic model, without a web server in front."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import gevent
import msgspec
import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv import app
from corosrv.contracts import settings
from corosrv.formats import bodies
from tests.support.engines import FAST, TIMEOUT

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": CHAT,
    "/completion": {"prompt": "Hi", "n_predict": 1},
    "/apply-template": CHAT,
    "/tokenize": {"content": "Hi"},
}


@pytest.fixture(scope="module")
def serving() -> Iterator[Flask]:
    """The application with its model loaded."""
    before = signal.getsignal(signal.SIGTERM)
    serving = app.create_app(settings.load({"model": FAST, "slots": 2, "ctx": 512, "threads": 2}, environ={}))
    server = serving.extensions["corosrv"]
    deadline = time.monotonic() + TIMEOUT
    while serving.test_client().get("/health").status_code != 200:
        assert time.monotonic() < deadline
        gevent.sleep(0.01)  # where an earlier test has left a hub, the model is loaded by a greenlet of it
    yield serving
    server.parts.models.close()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def client(serving: Flask) -> FlaskClient:
    return serving.test_client()


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_decoded_once(client: FlaskClient, monkeypatch: pytest.MonkeyPatch, path: str):
    looked_through: list[bytes] = []
    check = bodies.check

    def count(data: bytes) -> None:
        looked_through.append(data)
        check(data)

    monkeypatch.setattr(bodies, "check", count)

    answer = client.post(path, json=BODIES[path])

    assert answer.status_code == 200, answer.text
    assert [msgspec.json.decode(data) for data in looked_through] == [BODIES[path]]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 501, "invalid_request_error"),
        ("GET", "/v1/messages/batches/x", 501, "invalid_request_error"),
        ("PUT", "/v1/messages/batches", 405, "invalid_request_error"),
        ("POST", "/v1/messages/others", 404, "not_found_error"),
        ("POST", "/v1/messages", 400, "invalid_request_error"),
    ],
)
def test_every_error_below_messages_has_anthropic_s_shape(
    client: FlaskClient, method: str, path: str, status: int, kind: str
):
    answer = client.open(path, method=method, data=b"{", headers={"X-Request-Id": "req_1"})

    error = answer.get_json()
    assert answer.status_code == status
    assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", kind, "req_1")


@pytest.mark.parametrize("path", ["/v1/messagesx", "/v1/other", "/v1/chat/completions/x"])
def test_errors_elsewhere_have_openai_s_shape(client: FlaskClient, path: str):
    error = client.post(path).get_json()["error"]

    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "not_found_error"
