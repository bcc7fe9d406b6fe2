"""Ollama's endpoints of the whole server, on the synthetic model: statuses, headers, lines, errors and keys."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv import app
from corosrv.contracts import settings
from tests.support.engines import FAST
from tests.support.waiting import wait_until

HI = {"model": "synthetic", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "synthetic", "prompt": "Hi"}


def serving(**chosen: Any) -> Iterator[Flask]:
    before = signal.getsignal(signal.SIGTERM)
    served = app.create_app(settings.load({"model": FAST, "slots": 2, "ctx": 512, "threads": 1, **chosen}, environ={}))
    wait_until(lambda: served.test_client().get("/health").status_code == 200)
    yield served
    served.extensions["corosrv"].parts.models.close()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def served() -> Iterator[Flask]:
    yield from serving()


@pytest.fixture
def client(served: Flask) -> FlaskClient:
    return served.test_client()


def lines(answer: Any) -> list[Any]:
    return [json.loads(line) for line in answer.data.splitlines()]


@pytest.mark.parametrize(("path", "body"), [("/api/chat", HI), ("/api/generate", TEXT)])
def test_lines_are_streamed_unless_one_answer_is_asked_for(client: FlaskClient, path: str, body: dict[str, Any]):
    few = {"options": {"num_predict": 3}}
    streamed = client.post(path, json=body | few)
    whole = client.post(path, json=body | few | {"stream": False})

    assert streamed.mimetype == "application/x-ndjson"
    *pieces, last = lines(streamed)
    assert [line["done"] for line in pieces] == [False] * len(pieces)
    assert last["done"] is True
    assert whole.mimetype == "application/json"
    assert whole.json["done_reason"] == last["done_reason"] == "length"
    assert whole.json["eval_count"] == last["eval_count"] == 3
    assert whole.json["model"] == "synthetic"


def test_options_that_mean_nothing_are_named(client: FlaskClient):
    body = HI | {"options": {"num_ctx": 4096, "num_predict": 1}, "shift": True}
    answer = client.post("/api/chat", json=body)

    assert answer.headers["X-Corosrv-Ignored"] == "shift, options.num_ctx"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", HI), ("/api/generate", TEXT), ("/api/show", {}), ("/api/pull", {}),
        ("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"}), ("/api/chat", {"keep_alive": 0}),
    ],
)  # fmt: skip
def test_a_model_that_is_not_there_is_a_404_in_ollamas_words(client: FlaskClient, path: str, body: dict[str, Any]):
    answer = client.post(path, json=body | {"model": "gpt-9"})

    assert (answer.status_code, answer.json) == (404, {"error": "model 'gpt-9' not found"})


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/chat", {"model": "synthetic", "messages": 7}, "messages"),
        ("/api/chat", {}, "model is required"),
        ("/api/generate", TEXT | {"format": "xml"}, 'format must be "json"'),
        ("/api/generate", TEXT | {"keep_alive": "soon"}, "keep_alive must be"),
        ("/api/show", {"model": 7}, "model"),
    ],
)
def test_a_wrong_field_is_a_400_with_an_error_that_names_it(
    client: FlaskClient, path: str, body: dict[str, Any], words: str
):
    answer = client.post(path, json=body)

    assert answer.status_code == 400
    assert set(answer.json) == {"error"}
    assert answer.json["error"].startswith(words)


def test_a_body_that_is_no_json_is_a_400(client: FlaskClient):
    answer = client.post("/api/chat", data="{")

    assert answer.status_code == 400
    assert "not valid JSON" in answer.json["error"]


def test_what_is_not_offered_says_so(client: FlaskClient):
    assert client.post("/api/copy", json={}).status_code == 404
    for path in ("/api/copy", "/api/blobs/sha256:0"):
        assert f"{path} is not offered here: models are made" in client.post(path, json={}).json["error"]
    assert "OpenAI begin with /v1" in client.post("/api/v1/chat/completions", json={}).json["error"]
    assert client.delete("/api/delete", json={"model": "synthetic"}).status_code == 501
    assert "corosrv models rm" in client.delete("/api/delete", json={"model": "synthetic"}).json["error"]


def test_a_request_without_a_prompt_loads_or_unloads(served: Flask, client: FlaskClient):
    pool = served.extensions["corosrv"].parts.models.pool

    unloaded = client.post("/api/generate", json={"model": "synthetic", "keep_alive": 0})
    wait_until(lambda: pool.models()[0].status == "unloaded")
    assert client.get("/api/ps").json == {"models": []}
    loaded = client.post("/api/chat", json={"model": "synthetic:latest", "keep_alive": "5m"})

    assert (unloaded.json["done_reason"], loaded.json["done_reason"]) == ("unload", "load")
    (running,) = client.get("/api/ps").json["models"]
    assert running["name"] == "synthetic:latest"
    assert running["expires_at"] < "2200"


def test_an_answer_with_keep_alive_0_unloads_its_model_afterwards(served: Flask, client: FlaskClient):
    pool = served.extensions["corosrv"].parts.models.pool

    answer = client.post("/api/generate", json=TEXT | {"stream": False, "keep_alive": 0, "options": {"num_predict": 1}})

    assert answer.json["done_reason"] == "length"
    wait_until(lambda: pool.models()[0].status == "unloaded")


@pytest.mark.parametrize(("path", "body"), [("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})])
def test_a_model_without_vectors_says_so(client: FlaskClient, path: str, body: dict[str, Any]):
    answer = client.post(path, json=body | {"model": "synthetic"})

    assert (answer.status_code, answer.json) == (400, {"error": '"synthetic" does not support embeddings'})


def test_vectors_can_be_switched_off():
    for served in serving(embeddings=False):
        answer = served.test_client().post("/api/embed", json={"model": "synthetic", "input": "a"})

        assert (answer.status_code, list(answer.json)) == (501, ["error"])


def test_a_version_is_told_that_clients_can_compare(client: FlaskClient):
    assert tuple(map(int, client.get("/api/version").json["version"].split("."))) >= (0, 6, 4)


def test_a_pull_of_what_is_here_ends_well(client: FlaskClient):
    assert lines(client.post("/api/pull", json={"model": "synthetic"}))[-1] == {"status": "success"}
    assert client.post("/api/pull", json={"model": "synthetic", "stream": False}).json == {"status": "success"}


def test_all_of_it_needs_the_key():
    for served in serving(api_keys="secret"):
        client = served.test_client()
        for path in ("/api/tags", "/api/ps", "/api/version"):
            refused = client.get(path)
            assert refused.status_code == 401
            assert isinstance(refused.json["error"], str)
            assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_repeated_request_with_a_key_is_answered_once(client: FlaskClient):
    body, headers = HI | {"options": {"num_predict": 2}}, {"Idempotency-Key": "again"}

    first = client.post("/api/chat", json=body, headers=headers).data  # read to its end: until then the second is early
    second = client.post("/api/chat", json=body, headers=headers)

    assert second.headers["Idempotency-Replayed"] == "true"
    assert (second.data, second.mimetype) == (first, "application/x-ndjson")
