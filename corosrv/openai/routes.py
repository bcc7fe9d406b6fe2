"""The /v1 blueprint over any Worker: parse, submit, answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, request

from corosrv.errors import CorosrvError, ModelNotFound
from corosrv.http import body, sse
from corosrv.http.metrics import HttpStats
from corosrv.jobs import ModelCard, Worker
from corosrv.openai import answers, calls, errors, schema

log = logging.getLogger("corosrv.openai")


@dataclass(frozen=True, slots=True)
class Options:
    """How the routes behave; see the settings of the same names."""

    max_body_bytes: int
    ping_interval: float
    write_timeout: float
    defaults: calls.Defaults


def blueprint(worker: Worker, options: Options, stats: HttpStats) -> Blueprint:
    """Chat and text completions and the list of models, for `worker` to serve."""
    routes = Blueprint("openai", __name__)

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    def chat() -> Response:
        sent = body.read(request, options.max_body_bytes)
        fields = body.decode(request, sent, schema.chat_decoder)
        unsupported = body.decode(request, sent, schema.unsupported_decoder)
        return answer(answers.CHAT, calls.chat(fields, unsupported, options.defaults))

    @routes.post("/v1/completions")
    def complete() -> Response:
        sent = body.read(request, options.max_body_bytes)
        fields = body.decode(request, sent, schema.completion_decoder)
        unsupported = body.decode(request, sent, schema.unsupported_decoder)
        return answer(answers.TEXT, calls.completion(fields, unsupported, options.defaults))

    def answer(shape: answers.Shape, call: calls.Call) -> Response:
        reader = worker.submit(call.job)
        answering = answers.Answer(shape, call, worker.models()[0], reader.prompt_tokens)
        if not call.stream:
            return errors.json_response(answering.whole(sse.collect(request, reader)))
        stream = sse.EventStream(
            request.environ,
            reader,
            answering.first(),
            answering.events,
            lambda error: answers.event(errors.body(error)),
            options.ping_interval,
            options.write_timeout,
            stats,
        )
        return sse.response(stream)

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    def models() -> Response:
        worker.check()
        return errors.json_response({"object": "list", "data": [_describe(card) for card in worker.models()]})

    @routes.get("/v1/models/<path:name>")
    def model(name: str) -> Response:
        worker.check()
        for card in worker.models():
            if name in (card.id, *card.aliases):
                return errors.json_response(_describe(card))
        raise ModelNotFound(name)

    @routes.errorhandler(CorosrvError)
    def refuse(error: CorosrvError) -> Response:
        answer = errors.response(error)
        if answer.status_code >= 500:
            log.warning("%s %s: %s", request.method, request.path, error)
        return answer

    return routes


def _describe(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "corosrv",
        "aliases": list(card.aliases),
        "tags": [],
        "meta": card.meta,
    }
