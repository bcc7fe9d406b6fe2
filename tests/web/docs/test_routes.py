"""The API's document and its page, as the whole server gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv.app import Server
from corosrv.contracts import settings
from corosrv.web.docs import TAGS
from corosrv.web.http import openapi

NO_API = (
    "/v1/forkable/<id>",
    "/docs",
    "/docs/<name>",
    "/",
    "/favicon.ico",
    "/page/<digest>/<path:name>",
    "/api",
    "/api/<path:path>",
)


@pytest.fixture(scope="module")
def app() -> Iterator[Flask]:
    server = Server(settings.load({"model": "synthetic:", "api_keys": "secret"}, environ={}))
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(server.make_blueprint(), url_prefix="/llm")
    yield app
    server.parts.models.close()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def document(client: FlaskClient) -> Any:
    return client.get("/llm/openapi.json", headers={"Authorization": "Bearer secret"}).json


def test_every_route_says_what_it_does(app):
    silent = [
        rule.rule
        for rule in app.url_map.iter_rules()
        if openapi.find(app.view_functions[rule.endpoint]) is None and rule.rule.removeprefix("/llm") not in NO_API
    ]

    assert silent == []


@pytest.mark.parametrize(
    ("path", "part"),
    [("chat/completions", "`image_url`"), ("messages", "`image`"), ("responses", "`input_image`"),
     ("completions", "<__media__>")],
)  # fmt: skip
def test_an_operation_that_takes_images_says_where_and_how_many(document, path: str, part: str):
    description = document["paths"][f"/v1/{path}"]["post"]["description"]

    assert part in description
    assert "up to 100 images, each of up to 20 MiB and 25 megapixels, and 67 megapixels together" in description


def test_every_heading_is_known(document):
    used = {said["tags"][0] for path in document["paths"].values() for said in path.values()}

    assert used <= set(TAGS)


def test_the_document_is_for_the_place_where_the_server_is_mounted(document):
    assert document["servers"] == [{"url": "/llm"}]
    assert "/v1/chat/completions" in document["paths"]


def test_every_reference_leads_somewhere(document):
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document)))

    assert len(references) > 10
    assert {name.rpartition("/")[2] for name in references} <= set(document["components"]["schemas"])


def test_operation_ids_are_told_apart(document):
    ids = [said["operationId"] for path in document["paths"].values() for said in path.values()]

    assert len(ids) == len(set(ids))


def test_the_document_needs_the_key_and_the_page_does_not(client):
    assert client.get("/llm/openapi.json").status_code == 401
    assert client.get("/llm/docs").status_code == 200


def parts(client: FlaskClient) -> list[str]:
    page = client.get("/llm/docs").text
    return re.findall(r'(?:src|href)="(docs/[^"]+)"', page)


def test_all_parts_of_the_page_are_there_under_any_prefix(client):
    assert len(parts(client)) >= 2
    for part in parts(client):
        answer = client.get(f"/llm/{part}")
        assert answer.status_code == 200
        for module in re.findall(r'from "\./([^"]+)"', answer.text):
            assert client.get(f"/llm/docs/{module}").mimetype == "text/javascript"


def test_the_page_runs_nothing_but_its_own_parts(client):
    answer = client.get("/llm/docs")

    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script>|\son\w+=|\sstyle=", answer.text)
    assert not re.search(r"https?://", answer.text.replace("http://www.w3.org/2000/svg", ""))


@pytest.mark.parametrize("name", ["nothing.mjs", "..%2froutes.py", "%2e%2e", "../routes.py"])
def test_nothing_but_the_page_s_parts_is_given_out(client, name):
    answer = client.get(f"/llm/docs/{name}")

    assert answer.status_code == 404
    assert b"import" not in answer.data


def test_a_part_that_did_not_change_is_not_sent_again(client):
    tag = client.get("/llm/docs").headers["ETag"]

    assert client.get("/llm/docs", headers={"If-None-Match": tag}).status_code == 304


@pytest.mark.parametrize("has_page", [True, False])
def test_the_head_leads_to_the_page_where_there_is_one(has_page: bool):
    server = Server(settings.load({"upstream": "http://127.0.0.1:9", "page": has_page}, environ={}))
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(server.make_blueprint(), url_prefix="/llm")

    page = app.test_client().get("/llm/docs").text

    assert ('aria-label="Pages" hidden' in page) is not has_page
    assert '<a href="./#/live">' in page
