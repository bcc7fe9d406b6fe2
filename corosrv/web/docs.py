"""Serves the API document (GET /openapi.json), a page that shows it (GET /docs), and what people open first (GET /).

The title, the introduction and the headings of the API document stand here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from html import escape
from importlib import resources
from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request
from flask.blueprints import BlueprintSetupState

from corosrv.base import __version__
from corosrv.base.errors import NotFound
from corosrv.base.waits import call_in_thread
from corosrv.web.http import openapi
from corosrv.web.http.openapi import operation, without_key
from corosrv.web.http.reply import json_response
from corosrv.web.page import page_for_people

TITLE = "corosrv"
TEXT = (
    "A cooperative model server that speaks the protocols of OpenAI, Anthropic, Ollama and llama-server. "
    "If the server has API keys, every request except the one for health must carry one: "
    "`Authorization: Bearer KEY` or `X-Api-Key: KEY`."
)
# In the order of the page.
TAGS = {
    "Chat": "Conversations, rendered with the model's chat template.",
    "Text": "Prompts without a chat template.",
    "Responses": "OpenAI's newer form of conversations, which the server can store.",
    "Conversations": "OpenAI's stored conversations, which responses go on from and are added to.",
    "Messages": "Anthropic's form of conversations.",
    "Ollama": "Ollama's API, for its clients.",
    "Inference": "KServe's v2 protocol, the Open Inference Protocol: models and capabilities that take tensors.",
    "Embeddings": "Vectors of texts, and ranking of documents.",
    "Tokens": "Conversions between texts and tokens.",
    "Files": "Files in a folder of the server's, for batches.",
    "Batches": "Files of requests that run when there is room.",
    "Groups": "Requests that belong together, and are aborted together.",
    "Streams": "Streams that go on while their client is away, and are read on when it comes back.",
    "Models": "The models and their states.",
    "Server": "Health, metrics and documentation of the server.",
}


_TYPES = {"html": "text/html", "css": "text/css", "mjs": "text/javascript", "svg": "image/svg+xml"}
_FILES = resources.files("corosrv.web") / "static" / "docs"
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
        root = request.script_root + _own_prefix("/openapi.json")
        if root not in documents:
            documents[root] = _describe_routes(root, default_error, needs_key)
        joined = reduce(_join, filter(None, (make() for make in makers)), documents[root])
        return Response(msgspec.json.encode(joined), mimetype="application/json")

    return routes


# In the head of the page of the document, for servers that have the page at `/`.
_TABS = b'aria-label="Pages" hidden'


def page(has_tabs: bool) -> Blueprint:
    """Serves a page that reads the document, and works without any other server.

    `has_tabs`: its head leads to the page at `/`, which has the same.
    """
    routes = Blueprint("docs", __name__)
    tabs = _TABS.removesuffix(b" hidden") if has_tabs else _TABS

    @routes.get("/docs")
    @without_key
    def show_page() -> Response:
        return page_file("page.html", lambda body: body.replace(_TABS, tabs))

    @routes.get("/docs/<name>")
    @without_key
    def show_file(name: str) -> Response:
        return page_file(name)

    return routes


def page_file(name: str, change: Callable[[bytes], bytes] = lambda body: body) -> Response:
    """Answers with one of the files that the page is made of, after a change. Raises NotFound."""
    file = next((file for file in _FILES.iterdir() if file.name == name), None)
    if file is None:
        raise NotFound(f"the page has no file '{name[:80]}'")
    answer = page_response(change(file.read_bytes()), _TYPES[name.rpartition(".")[2]])
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


def _own_prefix(path: str) -> str:
    assert request.url_rule is not None
    return request.url_rule.rule[: -len(path)]


def _describe_routes(root: str, default_error: Any, needs_key: bool) -> dict[str, Any]:
    views, rules = current_app.view_functions, current_app.url_map.iter_rules()
    routes = openapi.routes(rules, views, _own_prefix("/openapi.json"))
    # A tenth of a second for the schemas of all types, in one call.
    return call_in_thread(
        openapi.document,
        routes,
        default_error=default_error,
        title=TITLE,
        text=TEXT,
        version=__version__,
        server=root or "/",
        needs_key=needs_key,
        tags=TAGS,
    )


def _join(document: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Joins two documents; where both use a name, the other's meaning wins."""
    schemas = document["components"]["schemas"] | other["components"]["schemas"]
    components = document["components"] | {"schemas": schemas}
    return document | {"paths": document["paths"] | other["paths"], "components": components}


_LINKS = {
    "docs": "every endpoint, and a form to try it",
    "v1/models": "the models, as OpenAI's clients see them",
    "health": "whether requests are taken",
    "metrics": "counters for Prometheus",
}
_NOTHING = "Nothing. Start a server with a model: <code>corosrv serve --model hf:OWNER/REPO:Q4_K_M</code>"
_CHAT = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}'
_EXAMPLES = {  # by kind: a path, and a body
    "model": ("/v1/chat/completions", _CHAT),
    "handler": ("/v2/models/NAME", ""),
    "predictor": ("/openapi.json", ""),
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>corosrv</title>
  <link rel="icon" href="docs/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="docs/home.css">
</head>
<body>
  <h1><img src="docs/icon.svg" alt="" width="30" height="30"> corosrv <small>{version}</small></h1>
  <p class="state {state}">{state}</p>
  <h2>Served here</h2>
{served}
  <h2>Try it</h2>
  <pre>{curl}</pre>
  <p>Clients of OpenAI's API take <code>{base}/v1</code> as their base URL, Anthropic's <code>{base}</code>.</p>
  <h2>Where</h2>
  <ul>
{links}
  </ul>
</body>
</html>
"""

# What Ollama's clients look for at `/`, which do not say what they accept.
OLLAMA_WORDS = "Ollama is running"


class Served(msgspec.Struct):
    """One thing that is served: a model, a handler or a predictor."""

    name: str
    kind: str
    state: str


class Home:
    """Answers `/` with what a server serves at that moment, and where."""

    def __init__(
        self, served: Callable[[], list[Served]], state: Callable[[], str], needs_key: bool, speaks_ollama: bool = False
    ) -> None:
        """`needs_key`: the server has API keys; then names are left out, and everybody may see the rest.

        `speaks_ollama`: Ollama's clients are served, some of which look here first.
        """
        self._speaks_ollama = speaks_ollama
        self._served = served
        self._state = state
        self._needs_key = needs_key

    def blueprint(self, is_mounted: bool) -> Blueprint:
        """Makes the routes. Somebody's own app has them only under a prefix: without one, `/` is the app's."""
        routes = Blueprint("home", __name__)

        def home() -> Response:
            return self._show()

        def favicon() -> Response:
            return page_file("icon.svg")

        def add(setup: BlueprintSetupState) -> None:
            if is_mounted and not setup.url_prefix:
                return
            # Without keys the host name and the page that asks are checked: names are not for other sites.
            setup.add_url_rule("/", "home", without_key(home) if self._needs_key else home)
            setup.add_url_rule("/favicon.ico", "favicon", without_key(favicon))

        routes.record(add)
        return routes

    def _show(self) -> Response:
        if page := page_for_people():
            return page
        served, state = self._served(), self._state()
        accepted = request.accept_mimetypes
        is_for_people = accepted["text/html"] > accepted["application/json"]
        if self._speaks_ollama and not request.headers.get("Accept"):
            answer = Response(OLLAMA_WORDS, mimetype="text/plain")
        elif is_for_people:
            answer = page_response(self._page(served, state).encode(), "text/html")
        else:
            shown = {} if self._needs_key else {"version": __version__, "served": served}
            answer = json_response({"server": "corosrv", "state": state, **shown, "paths": list(_links())})
        answer.headers["Cache-Control"] = "no-store"
        answer.vary.add("Accept")
        return answer

    def _page(self, served: list[Served], state: str) -> str:
        base = request.root_url.rstrip("/") + _prefix()
        return _PAGE.format(
            version="" if self._needs_key else __version__,
            state=escape(state),
            served=self._list(served),
            curl=escape(_curl(served, base, self._needs_key)),
            base=escape(base),
            links="\n".join(f'    <li><a href="{path}">/{path}</a> {words}</li>' for path, words in _links().items()),
        )

    def _list(self, served: list[Served]) -> str:
        if self._needs_key:
            return '  <p>Names are told to callers with a key: <a href="docs">/docs</a> has a field for it.</p>'
        if not served:
            return f"  <p>{_NOTHING}</p>"
        rows = [f"    <tr><td>{escape(one.name)}<td>{escape(one.kind)}<td>{escape(one.state)}" for one in served]
        return "  <table>\n" + "\n".join(rows) + "\n  </table>"


def _links() -> dict[str, str]:
    """Returns those of _LINKS that this server answers."""
    rules = {rule.rule for rule in current_app.url_map.iter_rules()}
    return {path: words for path, words in _LINKS.items() if f"{_prefix()}/{path}" in rules}


def _prefix() -> str:
    assert request.url_rule is not None
    return request.url_rule.rule.rstrip("/")


def _curl(served: list[Served], base: str, needs_key: bool) -> str:
    """Returns a command that calls the first thing that is served."""
    first = next(iter(served), Served("", "model", ""))
    path, body = _EXAMPLES[first.kind]
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    name = "NAME" if needs_key else first.name
    body_option = f" \\\n  -H 'Content-Type: application/json' -d '{body}'" if body else ""
    return f"curl {base}{path.replace('NAME', name)}{key}{body_option}"
