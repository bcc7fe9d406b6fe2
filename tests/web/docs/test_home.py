"""What answers where people look first: `/`, `/favicon.ico`, and Ollama's paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

import corosrv
from corosrv.app import Server
from corosrv.contracts import settings

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def client_of(prefix: str = "", is_mounted: bool = False, **overrides: Any) -> Iterator[FlaskClient]:
    server = Server(settings.load({"model": "synthetic:", "page": False, **overrides}, environ={}), is_mounted)
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(server.make_blueprint(), url_prefix=prefix or None)
    yield app.test_client()
    server.parts.models.close()


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    yield from client_of()


@pytest.fixture
def mounted() -> Iterator[FlaskClient]:
    yield from client_of("/llm", is_mounted=True)


@pytest.fixture
def guarded() -> Iterator[FlaskClient]:
    yield from client_of(api_keys="secret")


@pytest.fixture
def forwarding() -> Iterator[FlaskClient]:
    """A server that has no models of its own."""
    server = Server(settings.load({"upstream": "http://127.0.0.1:9"}, environ={}))
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(server.make_blueprint())
    yield app.test_client()
    server.close()


def test_a_browser_is_shown_what_is_served_and_where(client):
    answer = client.get("/", headers=BROWSER)

    assert answer.mimetype == "text/html"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for words in (
        "<td>synthetic<td>model",
        "curl http://localhost/v1/chat/completions",
        'href="docs"',
        'href="metrics"',
    ):
        assert words in answer.text


@pytest.mark.parametrize("accepted", ["application/json", "application/json, */*", "*/*", "text/plain"])
def test_a_program_is_told_the_same_as_json(client, accepted: str):
    told = client.get("/", headers={"Accept": accepted}).json

    assert [one["name"] for one in told["served"]] == ["synthetic"]
    assert set(told["paths"]) == {"docs", "health", "metrics", "v1/models"}


def test_clients_that_accept_nothing_in_particular_find_ollamas_words(client):
    answer = client.get("/")

    assert (answer.text, answer.mimetype) == ("Ollama is running", "text/plain")
    assert answer.headers["Vary"] == "Accept"
    assert client.head("/").status_code == 200


def test_links_and_commands_are_right_under_a_prefix(mounted):
    page = mounted.get("/llm/", headers=BROWSER).text

    assert "curl http://localhost/llm/v1/chat/completions" in page
    assert mounted.get("/llm/docs/home.css").status_code == 200  # `docs/home.css` from /llm/
    assert mounted.get("/llm/favicon.ico").mimetype == "image/svg+xml"
    assert mounted.get("/llm/api/tags").json["models"][0]["name"] == "synthetic:latest"


def test_an_app_keeps_its_own_root():
    for client in client_of(is_mounted=True):
        assert client.get("/").status_code == 404
        assert client.get("/api/tags").status_code == 404
        assert not client.get("/api/tags").is_json


@pytest.mark.parametrize("headers", [BROWSER, {}])
def test_names_and_version_are_for_callers_with_a_key(guarded, headers: dict[str, str]):
    answer = guarded.get("/", headers=headers)

    assert answer.status_code == 200
    assert "synthetic" not in answer.text
    assert corosrv.__version__ not in answer.text


def test_a_name_cannot_write_html():
    for client in client_of(model_alias="<script>alert(1)</script>"):
        assert "<script>" not in client.get("/", headers=BROWSER).text


def test_a_server_of_upstreams_speaks_ollamas_api(forwarding):
    assert forwarding.get("/").text == "Ollama is running"
    answer = forwarding.post("/api/generate", json={"model": "small"})

    assert answer.status_code == 503
    assert set(answer.json) == {"error"}


def test_ollamas_clients_need_a_key_too(guarded):
    answer = guarded.get("/api/tags")

    assert answer.status_code == 401
    assert isinstance(answer.json["error"], str)
