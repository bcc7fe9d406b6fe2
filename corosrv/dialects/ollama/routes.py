"""Defines Ollama's endpoints over a pool of models: parse, submit, answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec
from flask import Blueprint, Response
from flask.blueprints import BlueprintSetupState

from corosrv.base.errors import CorosrvError, NotFound, NotOffered
from corosrv.contracts.jobs import EmbedJob
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.ollama import api_docs, embedding, parse, schema
from corosrv.dialects.ollama.answers import Stopwatch, encode_line, error_body, loading_answer
from corosrv.dialects.ollama.catalog import VERSION, ApiVersion, OllamaCatalog, OllamaPool
from corosrv.dialects.ollama.loading import KeepAlive, pull_lines
from corosrv.dialects.ollama.parse import AskedModel
from corosrv.web.http import sse
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.http.terms import arrival

PREFIX = "/api"

Run = TypeVar("Run", bound=schema.RunBody)


class OllamaRoutes:
    """Answers requests of Ollama's clients."""

    def __init__(
        self,
        flow: RequestFlow,
        pool: OllamaPool,
        *,
        embeds: bool = True,
        idle_s: float = 0.0,
        names_elsewhere: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`pool`: the flow's worker. `embeds`, `idle_s`: the settings embeddings and model_idle_s. `names_elsewhere`:
        of models that upstreams serve."""
        self._flow = flow
        self._pool = pool
        self._embeds = embeds
        self._catalog = OllamaCatalog(pool, names_elsewhere)
        self._keep_alive = KeepAlive(pool, idle_s)

    def blueprint(self, is_mounted: bool = False) -> Blueprint:
        """Makes the routes. Somebody's own app has them only under a prefix: without one, `/api` is the app's."""
        routes = Blueprint("ollama", __name__)
        once = self._flow.once
        rules: tuple[tuple[str, str, Callable[..., Response]], ...] = (
            ("POST", "/chat", once(api_docs.chat(lambda: self._chat()))),
            ("POST", "/generate", once(api_docs.generate(lambda: self._generate()))),
            ("POST", "/embed", once(api_docs.embed(lambda: self._embed()))),
            ("POST", "/embeddings", once(api_docs.embedding(lambda: self._embed_one()))),
            ("GET", "/tags", api_docs.tags(lambda: json_response(self._catalog.tags()))),
            ("GET", "/ps", api_docs.running(lambda: json_response(self._running()))),
            ("GET", "/version", api_docs.version(lambda: json_response(ApiVersion(VERSION)))),
            ("POST", "/show", api_docs.show(lambda: json_response(self._show()))),
            ("POST", "/pull", api_docs.pull(lambda: self._pull())),
            ("DELETE", "/delete", api_docs.delete(lambda: self._delete())),
        )

        def add(setup: BlueprintSetupState) -> None:
            if is_mounted and not setup.url_prefix:
                return
            for method, path, view in rules:
                setup.add_url_rule(PREFIX + path, path.strip("/"), view, methods=[method])
            for number, rule in enumerate((PREFIX, f"{PREFIX}/<path:path>")):
                setup.add_url_rule(rule, f"refuse_{number}", _refuse, methods=["GET", "POST", "PUT", "DELETE"])

        routes.record(add)
        register_errors(routes, error_body)
        return routes

    def _chat(self) -> Response:
        return self._answer(self._receive(schema.chat_decoder), parse.chat)

    def _generate(self) -> Response:
        return self._answer(self._receive(schema.generate_decoder), parse.text)

    def _embed(self) -> Response:
        body, asked, stopwatch = self._embedding_request(schema.embed_decoder)
        chunks = self._collect(embedding.several_job(body, asked), body)
        return json_response(embedding.several_answer(chunks, asked, stopwatch))

    def _embed_one(self) -> Response:
        body, asked, _ = self._embedding_request(schema.embedding_decoder)
        return json_response(embedding.single_answer(self._collect(embedding.single_job(body, asked), body)))

    def _receive(self, decoder: msgspec.json.Decoder[Run]) -> Run:
        """Reads a body, and tells which of its options mean nothing here. Waits; raises Refused."""
        body = self._flow.receive(decoder)
        if unknown := schema.ignored_options(body):
            self._flow.ignored.tell(unknown)
        return body

    def _answer(self, body: Any, translate: Callable[..., Call]) -> Response:
        """Answers a chat or a text; one without a prompt loads its model, or unloads it."""
        seconds = schema.keep_seconds(body.keep_alive)
        if parse.is_empty(body):
            return self._load(body, seconds)
        asked, stopwatch = self._ask(body)
        call = translate(body, self._flow.defaults, asked, stopwatch)
        self._keep_alive.note(asked.card.parent or asked.card.id, seconds)
        return self._flow.answer(call)

    def _ask(self, body: schema.RunBody) -> tuple[AskedModel, Stopwatch]:
        """Finds a request's model. Waits while it is loaded; raises NotFound and Unavailable."""
        flow, name = self._flow, self._catalog.find(body.model_name).id
        began = time.monotonic()
        card = flow.worker.card(name)
        stopwatch = Stopwatch(arrival(), time.monotonic() - began)
        asked = AskedModel(card, partial(flow.worker.vocabulary, name), body.model_name, flow.images.intake(card))
        return asked, stopwatch

    def _load(self, body: schema.OllamaChatBody | schema.OllamaGenerateBody, seconds: float | None) -> Response:
        found = self._catalog.find(body.model_name)
        name = found.parent or found.id
        if seconds == 0:
            self._keep_alive.unload(name)
        else:
            self._flow.worker.card(name)
            self._keep_alive.note(name, seconds)
        is_chat = isinstance(body, schema.OllamaChatBody)
        return json_response(loading_answer(body.model_name, "unload" if seconds == 0 else "load", is_chat=is_chat))

    def _embedding_request(self, decoder: msgspec.json.Decoder[Run]) -> tuple[Run, AskedModel, Stopwatch]:
        if not self._embeds:
            raise NotOffered("embeddings are switched off (COROSRV_EMBEDDINGS=0)")
        body = self._receive(decoder)
        seconds = schema.keep_seconds(body.keep_alive)
        asked, stopwatch = self._ask(body)
        self._keep_alive.note(asked.card.parent or asked.card.id, seconds)
        return body, asked, stopwatch

    def _collect(self, job: EmbedJob | None, body: schema.RunBody) -> list[Any]:
        return [] if job is None else self._flow.collect(job, body.priority)

    def _running(self) -> Any:
        return self._catalog.running(self._keep_alive.expires_at)

    def _show(self) -> Any:
        body = self._flow.receive(schema.show_decoder)
        return self._catalog.show(self._catalog.find(body.model_name))

    def _pull(self) -> Response:
        body = self._flow.receive(schema.pull_decoder)
        lines = pull_lines(self._pool, self._catalog.find(body.model_name))
        if body.stream is False:
            *_, last = lines
            return json_response(last)
        return Response(_encoded(lines), mimetype=sse.LINES)

    def _delete(self) -> Response:
        card = self._catalog.find(self._flow.receive(schema.name_decoder).model_name)
        raise NotOffered(f"model '{card.id}' is the operator's to remove: corosrv models rm NAME")


def _encoded(lines: Iterator[Any]) -> Iterator[bytes]:
    """Encodes lines; an error on the way is the last one."""
    try:
        yield from map(encode_line, lines)
    except CorosrvError as error:
        yield encode_line(error_body(error))


def _refuse(path: str = "") -> Response:
    raise NotFound(
        f"{PREFIX}/{path[:80]} is not offered here: models are made, copied and uploaded by this server's operator",
        None,
        "not_offered",
    )


def has_path(path: str) -> bool:
    """Returns whether the path belongs to Ollama's API, even if there is no such route."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")
