"""Routes of requests that are forwarded to upstreams, and the list of models of all of them.

On a server that has models of its own as well, `ServerChoice` decides where a request goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from urllib.parse import quote

from flask import Blueprint, Response, current_app, request
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import ModelNotFound, NotFound, NotOffered
from corosrv.dialects.anthropic.answers import MessagesError
from corosrv.dialects.ollama import routes as ollama
from corosrv.dialects.ollama.catalog import TaggedList, TaggedModel, spellings
from corosrv.dialects.openai import api_docs
from corosrv.dialects.openai.routes import for_anthropic
from corosrv.fleet.upstreams.pool import UpstreamPool
from corosrv.fleet.upstreams.upstream import UpstreamState
from corosrv.gateway.forwarding.forwarder import Forwarder
from corosrv.gateway.forwarding.ollama import OllamaForwarding
from corosrv.gateway.forwarding.peek import BY_PATH, FORWARDED, KEPT, MODELS, OF_ONE_SERVER, PROPS, ForwardedPath
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http.lean_flask import current
from corosrv.web.http.openapi import GENERATES, operation
from corosrv.web.http.reply import json_response
from corosrv.web.http.terms import QueueHeaders
from corosrv.web.kept.keyed_answers import KeyedAnswers

OWNER = "corosrv"


def listing(names: Iterable[str], created: int, local: dict[str, Any] | None = None) -> dict[str, Any]:
    """Makes the answer of GET /v1/models; `models` is for clients of Ollama, as llama-server has it.

    `created`: Unix time. `local`: the same answer for the models that are served here, which come first.
    """
    local = local or {"data": [], "models": []}
    known = {name for model in local["data"] for name in (model["id"], *model["aliases"])}
    others = [name for name in names if name not in known]
    return {
        "object": "list",
        "data": [*local["data"], *(describe(name, created) for name in others)],
        "models": [*local["models"], *({"name": name, "model": name, "type": "model"} for name in others)],
        "has_more": False,
    }


def describe(name: str, created: int) -> dict[str, Any]:
    """Describes a model of upstreams, of which no more than its name is known."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "aliases": [],
        "tags": [],
        "status": {"value": "loaded"},
        "meta": {},
        **for_anthropic(name, created),
    }


class LocalModels(Protocol):
    """The models that are served here."""

    def names(self) -> frozenset[str]:
        """Returns their names and aliases."""

    def is_crowded(self, name: str) -> bool:
        """Tells whether a request would wait for a slot behind more others than it has to."""

    def listing(self) -> dict[str, Any]:
        """Makes the answer of GET /v1/models, also while they are loading."""

    def tags(self) -> list[TaggedModel]:
        """Makes the entries of GET /api/tags, also while they are loading."""


class ServerChoice:
    """Chooses between a model that is served here and upstreams."""

    def __init__(self, pool: UpstreamPool, local: LocalModels, *, is_strict: bool) -> None:
        """`is_strict`: an unknown name is an error even if there is one model alone."""
        self._pool = pool
        self._local = local
        self._is_strict = is_strict

    def stays(self, model: str | None) -> bool:
        """Tells whether a request for this model is answered here.

        One without a model is. Raises ModelNotFound for a name that nobody has where several models are served.
        """
        local, remote = self._local.names(), self._pool.models()
        if model is None or model in local:
            return model not in remote or not (self._local.is_crowded(model) and self._has_room(model))
        if model not in remote and (self._is_strict or not local.issuperset(remote)):
            raise ModelNotFound(model)
        return model not in remote

    def _has_room(self, model: str) -> bool:
        """Tells whether an upstream would take a request for this model at once."""
        return any(
            upstream.state is UpstreamState.READY and upstream.permits.available and model in upstream.models
            for upstream in self._pool.upstreams
        )


_TEXT = "The request goes on to an upstream as it was sent, and its answer comes back as it was given."
_HEALTH = "health.health"  # the endpoint that tells what stands before each path


class ForwardingRoutes:
    """Makes the routes; beside models that are served here, looks at their requests before they are answered."""

    def __init__(
        self,
        pool: UpstreamPool,
        forwarder: Forwarder,
        answers: KeyedAnswers,
        local: LocalModels | None = None,
        *,
        is_strict: bool = False,
    ) -> None:
        """`answers`: those that are kept under idempotency keys, also of models that are served here."""
        self._pool = pool
        self._forwarder = forwarder
        self._answers = answers
        self._local = local
        self._choice = None if local is None else ServerChoice(pool, local, is_strict=is_strict)
        self._created = int(time.time())
        self._ollama = OllamaForwarding(pool, forwarder, answers, self._created)
        self._paths: dict[str, str] = {}  # by the rule of a request, which may have a prefix

    def blueprint(self) -> Blueprint:
        """Makes the routes that no model served here has."""
        routes = Blueprint("forwarding", __name__)
        for path in FORWARDED:
            if self._local is None or not path.is_local:
                routes.add_url_rule(path.path, path.path.replace(".", "_"), self._view(path), methods=["POST"])
        if self._local is None:
            self._add_models(routes)
            self._add_props(routes)
            self._add_kept(routes)
            _add_refusals(routes)
        return routes

    def ollama(self, is_mounted: bool) -> Blueprint:
        """Makes the routes of Ollama's API, for a server that has upstreams alone."""
        return self._ollama.blueprint(is_mounted)

    def _view(self, path: ForwardedPath) -> Callable[[], Response]:
        @operation(
            path.tag,
            path.summary,
            _TEXT,
            body=dict[str, Any],
            answer=dict[str, Any],
            error=MessagesError if path.is_anthropic else None,
            headers=GenerateHeaders,
            statuses=(*GENERATES, 502),
        )
        def forward() -> Response:
            return self._forwarder.forward(path, *self._forwarder.read())

        return self._once(forward)

    def _once(self, view: Callable[[], Response]) -> Callable[[], Response]:
        """Wraps a view so that it answers a request once, however often it is repeated with its Idempotency-Key."""
        return self._answers.once(self._forwarder.max_body_bytes)(view)

    def _add_props(self, routes: Blueprint) -> None:
        @routes.get(PROPS.path)
        @operation(
            PROPS.tag, PROPS.summary, _TEXT, answer=dict[str, Any], headers=QueueHeaders, statuses=(404, 502, 503)
        )
        def props() -> Response:
            return self._forwarder.forward_question(PROPS, current(request).args.get("model"))

    def _add_kept(self, routes: Blueprint) -> None:
        """Adds the routes of responses that an upstream has made and keeps."""
        for (rule, method), summary in KEPT.items():

            @operation(
                "Responses", summary, "It goes on to the upstream that made the response for the same API key.",
                answer=dict[str, Any], parameters={"id": "a response's id"}, statuses=(404, 502, 503),
            )  # fmt: skip
            def ask(id: str, rule: str = rule) -> Response:
                answer = self._forwarder.forward_kept(rule.replace("<id>", quote(id, safe="")), id)
                if answer is None:
                    words = "no upstream has made it for this API key, or so many others since that it is forgotten"
                    raise NotFound(f"there is no response '{id[:120]}': {words}", "id", "response_not_found")
                return answer

            routes.add_url_rule(rule, f"kept {method} {rule}", ask, methods=[method])

    def _add_models(self, routes: Blueprint) -> None:
        @routes.get("/v1/models")
        @routes.get("/models", endpoint="models_short")
        @api_docs.models
        def list_models() -> Response:
            return json_response(self._listing())

        @routes.get("/v1/models/<path:name>")
        @api_docs.model
        def one_model(name: str) -> Response:
            if name not in self._pool.models():
                raise ModelNotFound(name)
            return json_response(describe(name, self._created))

    def _listing(self) -> dict[str, Any]:
        names = self._pool.models()
        if self._local is not None:
            return listing(names, self._created, self._local.listing())
        if not names:
            self._pool.check()  # says why
        return listing(names, self._created)

    # Beside models that are served here.

    def add_hook(self, scaffold: Scaffold) -> None:
        """Adds a before_request hook, behind other checks, that may forward requests for models served here."""
        if self._local is not None:
            scaffold.before_request(self._look)

    def _look(self) -> Response | None:
        """Answers a request that is for upstreams, or for the list of all models; None for any other."""
        incoming = current(request)
        path = self._path_of(incoming.url_rule.rule) if incoming.url_rule else ""
        if incoming.method == "POST" and (forwarded := BY_PATH.get(path)) is not None and forwarded.is_local:
            return self._forward_or_keep(forwarded)
        if ollama.has_path(path):
            return self._look_at_ollamas(path.removeprefix(ollama.PREFIX))
        if (path, incoming.method) in KEPT:
            id = (incoming.view_args or {})["id"]
            return self._forwarder.forward_kept(path.replace("<id>", quote(id, safe="")), id)
        if incoming.method == "GET" and path in MODELS:
            return json_response(self._listing())
        if incoming.method == "GET" and path == "/v1/models/<path:name>":
            return self._describe((incoming.view_args or {})["name"])
        return None

    def _look_at_ollamas(self, path: str) -> Response | None:
        """Answers a request of Ollama's API that is for upstreams, or for the list of all models."""
        assert self._local is not None
        if path != "/tags":
            return self._ollama.look(path, self._stays_by_ollamas_name)
        local = self._local.tags()
        known = {model.name for model in local}
        others = [model for model in self._ollama.entries() if model.name not in known]
        return json_response(TaggedList([*local, *others]))

    def _stays_by_ollamas_name(self, name: str) -> bool:
        """Tells as ServerChoice does where a model is answered, by a name that Ollama's clients have for it."""
        assert self._local is not None
        assert self._choice is not None
        names = self._local.names().union(self._pool.models())
        found = next((spelling for spelling in spellings(name) if spelling in names), None)
        return self._choice.stays(found)

    def _path_of(self, rule: str) -> str:
        """Returns a rule without the prefix that this server's routes have in somebody else's app."""
        path = self._paths.get(rule)
        if path is None:
            root = current(request).blueprints[-1:] or [""]
            (health, *_) = current_app.url_map.iter_rules(f"{root[0]}.{_HEALTH}")
            path = self._paths[rule] = rule.removeprefix(health.rule.removesuffix("/health").removesuffix("/v1"))
        return path

    def _forward_or_keep(self, path: ForwardedPath) -> Response | None:
        assert self._choice is not None
        body, peeked = self._forwarder.read()
        if self._choice.stays(peeked.model):
            return None
        return self._once(lambda: self._forwarder.forward(path, body, peeked))()

    def _describe(self, name: str) -> Response | None:
        assert self._local is not None
        if name in self._local.names() or name not in self._pool.models():
            return None
        return json_response(describe(name, self._created))


def _add_refusals(routes: Blueprint) -> None:
    """Adds the paths of llama-server that are not forwarded, so that their answer says why."""

    @operation(
        "Server", "Is refused", "Slots and adapters are of one server: ask the upstream itself.", statuses=(501,)
    )
    def refuse(slot: str = "") -> Response:
        path = current(request).path
        raise NotOffered(
            f"{path} is of one server, and is not forwarded to upstreams: ask the one that you mean itself"
        )

    for path, method in OF_ONE_SERVER:
        routes.add_url_rule(path, f"refuse_{method} {path}", refuse, methods=[method])
