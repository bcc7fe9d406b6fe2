"""Defines Ollama's endpoints over a pool of models: parse, submit, answer; and their entries in the API document."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec
from flask import Blueprint, Response, request
from flask.blueprints import BlueprintSetupState

from corosrv.base.errors import CorosrvError, NotFound, NotOffered
from corosrv.contracts.jobs import EmbedJob
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.ollama import answers, catalog, parse, schema
from corosrv.dialects.ollama.answers import Stopwatch, encode_line, error_body, loading_answer
from corosrv.dialects.ollama.catalog import VERSION, ApiVersion, OllamaCatalog, RunningList, RunningModel
from corosrv.dialects.ollama.loading import KeepAlive, pull_lines
from corosrv.dialects.ollama.parse import AskedModel
from corosrv.images.intake import images_in
from corosrv.models.pool import ModelPool
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http import sse
from corosrv.web.http.openapi import GENERATES, NEEDS_MODEL, READS, operation
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.http.siblings import AskOthers, OtherAnswer, is_repeated, no_others
from corosrv.web.http.terms import QueueHeaders, arrival

TAG = "Ollama"
_STREAM = (
    "Unless `stream` is false, the answer comes as lines of JSON, of which the last has `done`, counts, and times in "
    "nanoseconds. Without a prompt the model is loaded, and with `keep_alive: 0` unloaded. "
)
_QUESTION = {"model": "NAME", "messages": [{"role": "user", "content": "Name three colours."}], "stream": False}


def _operation(summary: str, text: str = "", **members: Any) -> Any:
    return operation(TAG, summary, text, error=answers.OllamaError, **members)


chat_docs = _operation(
    "Answer a conversation, as Ollama does",
    _STREAM + images_in("`images` of a user's message and of a tool's"),
    body=schema.OllamaChatBody,
    answer=answers.OllamaChatLine,
    lines=answers.OllamaChatLine,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A question": _QUESTION, "Streamed": _QUESTION | {"stream": True, "options": {"num_predict": 64}}},
)
generate_docs = _operation(
    "Answer a prompt, as Ollama does",
    _STREAM + "`raw` leaves the chat template out; `suffix` fills a gap. " + images_in("`images`"),
    body=schema.OllamaGenerateBody,
    answer=answers.OllamaTextLine,
    lines=answers.OllamaTextLine,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A prompt": {"model": "NAME", "prompt": "Why is the sky blue?", "stream": False}},
)
embed_docs = _operation(
    "Turn texts into vectors, as Ollama does",
    "Texts that are longer than the context are cut, unless `truncate` is false.",
    body=schema.OllamaEmbedBody,
    answer=answers.OllamaEmbeddings,
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"Two texts": {"model": "NAME", "input": ["The sea is wide.", "The ocean is vast."]}},
)
embedding_docs = _operation(
    "Turn a text into a vector, as older clients of Ollama ask",
    body=schema.OllamaEmbeddingBody,
    answer=answers.OllamaEmbedding,
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"A text": {"model": "NAME", "prompt": "The sea is wide."}},
)
tags_docs = _operation("List the models, as Ollama does", answer=catalog.TaggedList, statuses=(503,))
running_docs = _operation(
    "List the models that are loaded, as Ollama does", answer=catalog.RunningList, statuses=(503,)
)
show_docs = _operation(
    "Describe a model, as Ollama does",
    "A model that is not loaded is not loaded for it: no more is told than the head of its file says.",
    body=schema.ShowBody,
    answer=catalog.ShownModel,
    statuses=(*READS, *NEEDS_MODEL, 501),
    examples={"A model": {"model": "NAME"}},
)
version_docs = _operation("Tell which release of Ollama this API is of", answer=catalog.ApiVersion)
pull_docs = _operation(
    "Download a model, as Ollama does",
    "Of those that this server's operator has named on a hub (`--model hf:OWNER/REPO:Q4_K_M`); it is loaded then.",
    body=schema.PullBody,
    answer=answers.PullLine,
    lines=answers.PullLine,
    statuses=(*READS, *NEEDS_MODEL, 500, 501),
    examples={"A model": {"model": "NAME", "stream": False}},
)
delete_docs = _operation(
    "Is refused",
    "Models are the operator's to remove: `corosrv models rm NAME`.",
    body=schema.NamedBody,
    statuses=(*READS, *NEEDS_MODEL, 501),
)


PREFIX = "/api"

Run = TypeVar("Run", bound=schema.RunBody)


View = Callable[[], Response]
Views = dict[tuple[str, str], View]  # by method and path below /api


class OllamaAnswers(Protocol):
    """Anything that answers requests of Ollama's clients: each method answers the current one. Waits."""

    def chat(self) -> Response: ...

    def generate(self) -> Response: ...

    def embed(self) -> Response: ...

    def embed_one(self) -> Response: ...

    def tags(self) -> Response: ...

    def running(self) -> Response: ...

    def show(self) -> Response: ...

    def pull(self) -> Response: ...

    def delete(self) -> Response: ...


def views_of(answers: OllamaAnswers, once: Callable[[View], View]) -> Views:
    """Makes the views, which say what they do. `once`: wraps a view so that it answers a repeated request once."""
    return {
        ("POST", "/chat"): once(chat_docs(lambda: answers.chat())),
        ("POST", "/generate"): once(generate_docs(lambda: answers.generate())),
        ("POST", "/embed"): once(embed_docs(lambda: answers.embed())),
        ("POST", "/embeddings"): once(embedding_docs(lambda: answers.embed_one())),
        ("GET", "/tags"): tags_docs(lambda: answers.tags()),
        ("GET", "/ps"): running_docs(lambda: answers.running()),
        ("GET", "/version"): version_docs(lambda: json_response(ApiVersion(VERSION))),
        ("POST", "/show"): show_docs(lambda: answers.show()),
        ("POST", "/pull"): pull_docs(lambda: answers.pull()),
        ("DELETE", "/delete"): delete_docs(lambda: answers.delete()),
    }


def make_blueprint(views: Views, is_mounted: bool) -> Blueprint:
    """Makes the routes of views, and refuses all others. Somebody's own app has them under a prefix only."""
    routes = Blueprint("ollama", __name__)

    def add(setup: BlueprintSetupState) -> None:
        if is_mounted and not setup.url_prefix:
            return
        for (method, path), view in views.items():
            setup.add_url_rule(PREFIX + path, path.strip("/"), view, methods=[method])
        for number, rule in enumerate((PREFIX, f"{PREFIX}/<path:path>")):
            setup.add_url_rule(rule, f"refuse_{number}", _refuse, methods=["GET", "POST", "PUT", "DELETE"])

    routes.record(add)
    register_errors(routes, error_body)
    return routes


_OF_OPERATORS = ("create", "copy", "push", "blobs")


def _refuse(path: str = "") -> Response:
    words = "GET /docs lists all paths; those of OpenAI begin with /v1"
    if path.partition("/")[0] in _OF_OPERATORS:
        words = "models are made, copied and uploaded by this server's operator"
    raise NotFound(f"{PREFIX}/{path[:80]} is not offered here: {words}", None, "not_offered")


class OllamaRoutes:
    """Answers requests of Ollama's clients for models that are served here."""

    def __init__(
        self,
        flow: RequestFlow,
        pool: ModelPool,
        *,
        embeds: bool = True,
        idle_s: float = 0.0,
        ask_other_workers: AskOthers = no_others,
    ) -> None:
        """`pool`: the flow's worker. `embeds`, `idle_s`: the settings embeddings and model_idle_s.

        `ask_other_workers`: has every other worker process hear for how long a model is to stay, and tell what it has.
        """
        self._flow = flow
        self._pool = pool
        self._embeds = embeds
        self._ask_other_workers = ask_other_workers
        self._catalog = OllamaCatalog(pool)
        self._keep_alive = KeepAlive(pool, idle_s)

    def blueprint(self, is_mounted: bool = False) -> Blueprint:
        """Makes the routes. Somebody's own app has them only under a prefix: without one, `/api` is the app's."""
        return make_blueprint(views_of(self, self._flow.once), is_mounted)

    def chat(self) -> Response:
        return self._answer(self._receive(schema.chat_decoder), parse.chat)

    def generate(self) -> Response:
        return self._answer(self._receive(schema.generate_decoder), parse.text)

    def embed(self) -> Response:
        body, asked, stopwatch = self._embedding_request(schema.embed_decoder)
        chunks = self._collect(parse.several_job(body, asked), body)
        return json_response(parse.several_answer(chunks, asked, stopwatch, body.dimensions))

    def embed_one(self) -> Response:
        body, asked, _ = self._embedding_request(schema.embedding_decoder)
        return json_response(parse.single_answer(self._collect(parse.single_job(body, asked), body)))

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
        call = translate(body, asked, stopwatch)
        self._keep(asked.card.parent or asked.card.id, seconds)
        return self._flow.answer(call)

    def _keep(self, name: str, seconds: float | None) -> None:
        """Notes for how long a model is to stay, and tells the other worker processes if that is news. Waits for them.

        Each unloads it when that has passed since its own last request: the model goes with the last of them.
        """
        if self._keep_alive.note(name, seconds):
            self._tell_others(name, seconds)

    def _tell_others(self, name: str, seconds: float | None) -> None:
        told = {"model": name, "keep_alive": -1 if seconds == math.inf else seconds}
        path = f"{request.script_root}{request.path.rpartition(f'{PREFIX}/')[0]}{PREFIX}/generate"
        self._ask_other_workers(request, msgspec.json.encode(told), path)

    def _ask(self, body: schema.RunBody) -> tuple[AskedModel, Stopwatch]:
        """Finds a request's model. Waits while it is loaded; raises NotFound and Unavailable."""
        flow, name = self._flow, self._catalog.find(body.model_name).id
        began = time.monotonic()
        card = flow.worker.card(name)
        stopwatch = Stopwatch(arrival(), time.monotonic() - began)
        asked = AskedModel(card, partial(flow.worker.vocabulary, name), body.model_name, flow.intake(card))
        return asked, stopwatch

    def _load(self, body: schema.OllamaChatBody | schema.OllamaGenerateBody, seconds: float | None) -> Response:
        found = self._catalog.find(body.model_name)
        name = found.parent or found.id
        if seconds == 0:
            self._keep_alive.unload(name)
            self._tell_others(name, seconds)
        elif is_repeated(request):
            self._keep_alive.note(name, seconds)
        else:
            self._flow.worker.card(name)
            self._keep(name, seconds)
        is_chat = isinstance(body, schema.OllamaChatBody)
        return json_response(loading_answer(body.model_name, "unload" if seconds == 0 else "load", is_chat=is_chat))

    def _embedding_request(self, decoder: msgspec.json.Decoder[Run]) -> tuple[Run, AskedModel, Stopwatch]:
        if not self._embeds:
            raise NotOffered("embeddings are switched off (COROSRV_EMBEDDINGS=0)")
        body = self._receive(decoder)
        seconds = schema.keep_seconds(body.keep_alive)
        asked, stopwatch = self._ask(body)
        self._keep(asked.card.parent or asked.card.id, seconds)
        return body, asked, stopwatch

    def _collect(self, job: EmbedJob | None, body: schema.RunBody) -> list[Any]:
        return [] if job is None else self._flow.collect(job, body.priority)

    def tags(self) -> Response:
        return json_response(self._catalog.tags())

    def running(self) -> Response:
        running = {model.name: model for model in self._catalog.running(self._keep_alive.expires_at).models}
        for answer in self._ask_other_workers(request):
            for model in _models_of(answer):
                if model.name not in running or running[model.name].expires_at < model.expires_at:
                    running[model.name] = model
        return json_response(RunningList(list(running.values())))

    def show(self) -> Response:
        body = self._flow.receive(schema.show_decoder)
        found = self._catalog.find(body.model_name)
        return json_response(self._catalog.show(self._pool.known_card(found.id)))

    def pull(self) -> Response:
        body = self._flow.receive(schema.pull_decoder)
        lines = pull_lines(self._pool, self._catalog.find(body.model_name))
        if body.stream is False:
            *_, last = lines
            return json_response(last)
        return Response(_encoded(lines), mimetype=sse.LINES)

    def delete(self) -> Response:
        card = self._catalog.find(self._flow.receive(schema.name_decoder).model_name)
        raise NotOffered(f"model '{card.id}' is the operator's to remove: corosrv models rm NAME")


def _models_of(answer: OtherAnswer) -> list[RunningModel]:
    """Returns the models that another worker process has told."""
    return msgspec.json.decode(answer.body, type=RunningList).models if answer.status == HTTPStatus.OK else []


def _encoded(lines: Iterator[Any]) -> Iterator[bytes]:
    """Encodes lines; an error on the way is the last one."""
    try:
        yield from map(encode_line, lines)
    except CorosrvError as error:
        yield encode_line(error_body(error))


def has_path(path: str) -> bool:
    """Returns whether the path belongs to Ollama's API, even if there is no such route."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")
