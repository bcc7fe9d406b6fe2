"""Fields of bodies that mean nothing here are told to the client, and once to the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv.app import Server
from corosrv.contracts import settings

HEADER = "X-Corosrv-Ignored"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": CHAT,
    "/completion": {"prompt": "hi", "n_predict": 1},
    "/infill": {"input_prefix": "hi", "input_suffix": "", "n_predict": 1},
}


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    server = Server(settings.load({"model": "synthetic:"}, environ={}), is_mounted=True)
    app = Flask(__name__)
    app.register_blueprint(server.make_blueprint())
    yield app.test_client()
    server.parts.models.close()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_named_in_a_header(client, path: str, stream: bool):
    answer = client.post(path, json={**BODIES[path], "stream": stream, "max_token": 3, "nothing": None})

    assert answer.headers[HEADER] == "max_token"
    assert HEADER not in client.post(path, json=BODIES[path]).headers


def test_the_log_names_a_field_once_and_what_may_be_meant(client, caplog):
    for _ in range(3):
        client.post("/v1/chat/completions", json={**CHAT, "max_token": 3})

    lines = [record.getMessage() for record in caplog.records if "max_token," in record.getMessage()]
    assert len(lines) == 1
    assert "did its client mean max_tokens?" in lines[0]


def test_names_are_bounded_and_cannot_forge_a_header(client, caplog):
    names = {f"field{number}": 1 for number in range(400)}
    evil = {"a\r\nSet-Cookie: b=c": 1, "x" * 5000: 1}

    answer = client.post("/v1/chat/completions", data=json.dumps({**CHAT, **evil, **names}))

    assert answer.headers[HEADER].startswith("a??Set-Cookie??b?c, " + "x" * 64 + ", field0, ")
    assert answer.headers[HEADER].endswith(", ...")
    assert len(answer.headers[HEADER]) < 1200
    assert "Set-Cookie" not in answer.headers
    assert sum(record.getMessage().startswith("a request has a field ") for record in caplog.records) == 200
