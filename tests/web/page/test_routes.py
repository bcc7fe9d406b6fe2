"""The page and its files as a client of HTTP sees them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv.app import Server
from corosrv.contracts import settings
from corosrv.web import page as routes

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = Path(routes.__file__).parent / "static" / "page"
MOST_BYTES = 250_000  # of all files, compressed


def client_of(prefix: str = "/llm", is_mounted: bool = True, **overrides: Any) -> Iterator[FlaskClient]:
    server = Server(settings.load({"model": "synthetic:", **overrides}, environ={}), is_mounted)
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(server.make_blueprint(), url_prefix=prefix or None)
    yield app.test_client()
    server.parts.models.close()


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    yield from client_of()


def parts(client: FlaskClient) -> list[str]:
    """Returns the addresses in the page of what it is made of."""
    page = client.get("/llm/", headers=BROWSER).text
    return re.findall(r'(?:src|href)="(page/[^"]+)"', page)


def test_a_browser_gets_the_page_and_may_run_its_own_parts_only(client):
    answer = client.get("/llm/", headers=BROWSER)

    policy = answer.headers["Content-Security-Policy"]
    assert answer.mimetype == "text/html"
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\son\w+=|\sstyle=|https?://", answer.text)
    for kind in ("script", "style"):  # what stands in the page, and is named by its hash
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", answer.text, re.DOTALL)
        assert f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy


def test_a_program_is_told_what_is_served(client):
    answer = client.get("/llm/", headers={"Accept": "application/json"})

    assert [one["name"] for one in answer.json["served"]] == ["synthetic"]
    assert "Accept" in answer.headers["Vary"]


def test_all_parts_are_there_under_any_prefix_and_kept_for_good(client):
    found = parts(client)

    assert len(found) > 10
    for part in found:
        answer = client.get(f"/llm/{part}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_module_that_a_module_imports_is_there(client):
    folder = parts(client)[0].rsplit("/", 1)[0]
    for file in FILES.glob("*.mjs"):
        for module in re.findall(r'(?:from |import\()"\./([^"]+)"', file.read_text()):
            assert client.get(f"/llm/{folder}/{module}").mimetype == "text/javascript" or module == "live.mjs"


def test_the_page_names_the_modules_that_it_needs_at_once(client):
    """Each import that is found late costs one more way to the server."""
    named = {part.rpartition("/")[2] for part in parts(client)}
    needed, new = set(), {"main.mjs"}
    while new:
        needed |= new
        texts = [(FILES / name).read_text() for name in new if (FILES / name).exists()]
        new = {name for text in texts for name in re.findall(r'^import .* from "\./([\w.-]+)"', text, re.M)} - needed

    assert needed <= named


def test_files_are_compressed_where_that_is_taken(client):
    part = next(part for part in parts(client) if part.endswith("chat.mjs"))

    packed = client.get(f"/llm/{part}", headers={"Accept-Encoding": "gzip"})
    plain = client.get(f"/llm/{part}")

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 2


def test_a_page_that_did_not_change_is_not_sent_again(client):
    first = client.get("/llm/", headers=BROWSER)

    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/llm/", headers={**BROWSER, "If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304


def test_files_of_another_version_are_not_mixed_in(client):
    answer = client.get("/llm/page/0123456789abcdef/main.mjs")

    assert answer.status_code == 404
    assert "version" in answer.json["error"]["message"]


@pytest.mark.parametrize("name", ["../routes.py", "..%2froutes.py", "vendor", "", "nothing.mjs", "%2e%2e/__init__.py"])
def test_nothing_but_the_page_s_files_is_given_out(client, name: str):
    folder = parts(client)[0].rsplit("/", 1)[0]

    assert client.get(f"/llm/{folder}/{name}").status_code == 404


def test_with_keys_the_page_is_for_everybody_and_names_nothing():
    for client in client_of(api_keys="secret"):
        page = client.get("/llm/", headers=BROWSER)
        assert page.status_code == 200
        assert "synthetic" not in page.text
        assert client.get(f"/llm/{parts(client)[0]}").status_code == 200


def test_an_app_keeps_its_own_root_and_its_own_page():
    for client in client_of(prefix=""):
        assert client.get("/", headers=BROWSER).status_code == 404
        assert "corosrv" not in client.get(f"/page/{routes._digest()}/main.mjs").text


def test_the_page_is_switched_off():
    for client in client_of(page=False):
        answer = client.get("/llm/", headers=BROWSER)
        assert "<td>synthetic<td>model" in answer.text
        assert client.get(f"/llm/page/{routes._digest()}/main.mjs").status_code == 404


def test_the_page_is_small():
    sizes = [len(gzip.compress(file.read_bytes())) for file in FILES.rglob("*") if file.is_file()]

    assert sum(sizes) < MOST_BYTES


def test_libraries_are_what_their_packages_hold():
    told = {entry["file"]: entry for entry in json.loads((FILES / "vendor" / "vendor.json").read_text())}
    there = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (FILES / "vendor").glob("*js")}

    assert {name: entry["sha256"] for name, entry in told.items()} == there
    for entry in told.values():
        assert set(entry) == {"file", "name", "version", "licence", "source", "sha256"}
        assert f"{entry['name']} {entry['version']}" in (FILES / "vendor" / "licences.txt").read_text()


def test_no_file_of_the_page_calls_elsewhere():
    for file in [*FILES.glob("*.mjs"), *FILES.glob("*.css"), *FILES.glob("*.js")]:
        found = re.findall(r"https?://[\w.-]+", file.read_text())
        assert [url for url in found if "www.w3.org" not in url] == []
