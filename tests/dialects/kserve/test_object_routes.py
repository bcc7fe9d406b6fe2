"""Objects over HTTP: stored, found by key, read, deleted, and kept from others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest
from flask import Flask, g
from flask.testing import FlaskClient

from corosrv.dialects.kserve import routes
from corosrv.web.http.body_reader import BodyReader
from corosrv.workers.objects import MIN_FILE, ObjectStore


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = ObjectStore(max_object=1 << 20)
    yield store
    store.close()


@pytest.fixture
def client(store: ObjectStore) -> FlaskClient:
    app = Flask(__name__)
    app.register_blueprint(routes.objects_blueprint(store, BodyReader()))

    @app.before_request
    def name_caller() -> None:
        from flask import request

        g.corosrv_caller = request.headers.get("X-Test-Caller", "")

    return app.test_client()


@pytest.mark.parametrize("size", [0, 10, MIN_FILE * 3 + 1])
def test_a_stored_value_is_read_as_it_was(client: FlaskClient, size: int):
    data = os.urandom(size)

    created = client.post("/v2/objects", data=data, content_type="image/png")
    answer = client.get(f"/v2/objects/{created.json['id']}")

    assert created.status_code == 201
    assert created.json["sha256"] == hashlib.sha256(data).hexdigest()
    assert (answer.data, answer.content_type, answer.content_length) == (data, "image/png", size)
    assert answer.headers["Content-Disposition"] == "attachment"


def test_head_tells_the_size_and_sends_nothing(client: FlaskClient):
    created = client.post("/v2/objects", data=b"12345")

    answer = client.head(f"/v2/objects/{created.json['id']}")

    assert (answer.content_length, answer.data) == (5, b"")


def test_a_key_finds_the_value_that_was_stored_last(client: FlaskClient):
    client.put("/v2/objects/by-key/k", data=b"1")
    second = client.post("/v2/objects?key=k&ttl_s=60", data=b"2").json

    assert client.get("/v2/objects?key=k").json == {"objects": [second]}
    assert client.get("/v2/objects?key=other").json == {"objects": []}


def test_a_deleted_value_is_not_there(client: FlaskClient):
    object_id = client.post("/v2/objects", data=b"1").json["id"]

    assert client.delete(f"/v2/objects/{object_id}").status_code == 200

    answer = client.get(f"/v2/objects/{object_id}")
    assert (answer.status_code, "no object" in answer.json["error"]) == (404, True)


def test_values_of_another_caller_are_not_there(client: FlaskClient):
    object_id = client.post("/v2/objects?key=k", data=b"1", headers={"X-Test-Caller": "a"}).json["id"]

    other = {"X-Test-Caller": "b"}
    assert client.get(f"/v2/objects/{object_id}", headers=other).status_code == 404
    assert client.delete(f"/v2/objects/{object_id}", headers=other).status_code == 404
    assert client.get("/v2/objects?key=k", headers=other).json == {"objects": []}


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v2/objects?ttl_s=soon", 400, "ttl_s must be a number"),
        ("/v2/objects?ttl_s=-1", 400, "ttl_s must be above 0"),
        ("/v2/objects?key=a%20b", 400, "key has 1 to 200"),
    ],
)
def test_a_wrong_option_is_refused_by_name(client: FlaskClient, path: str, status: int, words: str):
    answer = client.post(path, data=b"1")

    assert (answer.status_code, words in answer.json["error"]) == (status, True)


def test_a_value_that_is_too_large_is_refused(client: FlaskClient):
    answer = client.post("/v2/objects", data=bytes((1 << 20) + 1))

    assert answer.status_code == 413


def test_a_list_without_a_key_is_refused(client: FlaskClient):
    assert client.get("/v2/objects").status_code == 400
