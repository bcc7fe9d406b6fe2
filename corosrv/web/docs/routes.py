"""Serves the API document (GET /openapi.json) and a page that shows it (GET /docs).

Texts of the API document: its title, its introduction and its headings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from importlib import resources
from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request

import corosrv
from corosrv.base.errors import NotFound
from corosrv.base.waits import call_in_thread
from corosrv.web.http import openapi
from corosrv.web.http.openapi import operation, without_key

TITLE = "corosrv"
TEXT = (
    "A cooperative model server that speaks the protocols of OpenAI, Anthropic and llama-server. "
    "If the server has API keys, every request except the one for health must carry one: "
    "`Authorization: Bearer KEY` or `X-Api-Key: KEY`."
)
# In the order of the page.
TAGS = {
    "Chat": "Conversations, rendered with the model's chat template.",
    "Text": "Prompts without a chat template.",
    "Responses": "OpenAI's newer form of conversations, which the server can store.",
    "Messages": "Anthropic's form of conversations.",
    "Inference": "KServe's v2 protocol, the Open Inference Protocol: models and capabilities that take tensors.",
    "Embeddings": "Vectors of texts, and ranking of documents.",
    "Tokens": "Conversions between texts and tokens.",
    "Groups": "Requests that belong together, and are aborted together.",
    "Models": "The models and their states.",
    "Server": "Health, metrics and documentation of the server.",
}


_TYPES = {"html": "text/html", "css": "text/css", "mjs": "text/javascript", "svg": "image/svg+xml"}
_FILES = resources.files("corosrv.web.docs") / "static"
# The page may run, show and call only what this server sends.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def document(
    default_error: Any, needs_key: bool, other_documents: Iterable[Callable[[], dict[str, Any] | None]] = ()
) -> Blueprint:
    """Describes every route of the app it is registered in that says what it does, and is under the same prefix.

    `default_error`: the shape of errors where a route names none. `needs_key`: requests have to carry one.
    `other_documents`: functions that make other documents, or None, whose paths and schemas stand in this one too;
    they may raise Unavailable.
    """
    routes = Blueprint("document", __name__)
    documents: dict[str, dict[str, Any]] = {}
    makers = tuple(other_documents)

    @routes.get("/openapi.json")
    @operation("Server", "Describe the API", "This document, as OpenAPI 3.1 has it.", answer=dict[str, Any])
    def describe() -> Response:
        root = request.script_root + _prefix("/openapi.json")
        if root not in documents:
            documents[root] = _describe_routes(root, default_error, needs_key)
        joined = reduce(_join, filter(None, (make() for make in makers)), documents[root])
        return Response(msgspec.json.encode(joined), mimetype="application/json")

    return routes


def page() -> Blueprint:
    """Serves a page that reads the document, and works without any other server."""
    routes = Blueprint("docs", __name__)

    @routes.get("/docs")
    @without_key
    def show_page() -> Response:
        return page_file("page.html")

    @routes.get("/docs/<name>")
    @without_key
    def show_file(name: str) -> Response:
        return page_file(name)

    return routes


def page_file(name: str) -> Response:
    """Answers with one of the files that the page is made of. Raises NotFound."""
    file = next((file for file in _FILES.iterdir() if file.name == name), None)
    if file is None:
        raise NotFound(f"the page has no file '{name[:80]}'")
    answer = page_response(file.read_bytes(), _TYPES[name.rpartition(".")[2]])
    answer.headers["Cache-Control"] = "no-cache"
    answer.add_etag()
    answer.make_conditional(request)
    return answer


def page_response(body: bytes, mimetype: str) -> Response:
    """Makes an answer for browsers, which may run, show and call only what this server sends."""
    answer = Response(body, mimetype=mimetype)
    answer.headers["Content-Security-Policy"] = _POLICY
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


def _prefix(path: str) -> str:
    assert request.url_rule is not None
    return request.url_rule.rule[: -len(path)]


def _describe_routes(root: str, default_error: Any, needs_key: bool) -> dict[str, Any]:
    views, rules = current_app.view_functions, current_app.url_map.iter_rules()
    routes = openapi.routes(rules, views, _prefix("/openapi.json"))
    # A tenth of a second for the schemas of all types, in one call.
    return call_in_thread(
        openapi.document,
        routes,
        default_error=default_error,
        title=TITLE,
        text=TEXT,
        version=corosrv.__version__,
        server=root or "/",
        needs_key=needs_key,
        tags=TAGS,
    )


def _join(document: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Joins two documents; where both use a name, the other's meaning wins."""
    schemas = document["components"]["schemas"] | other["components"]["schemas"]
    components = document["components"] | {"schemas": schemas}
    return document | {"paths": document["paths"] | other["paths"], "components": components}
