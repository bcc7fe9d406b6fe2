"""OpenAI's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.generation.exchange import Call, Desk
from corosrv.http.reply import json_response
from corosrv.openai import described, errors, models
from corosrv.openai.chat import calls as chat_calls
from corosrv.openai.chat import schema as chat_schema
from corosrv.openai.completions import calls as completion_calls
from corosrv.openai.completions import schema as completion_schema
from corosrv.openai.fields import input_tokens


def blueprint(desk: Desk) -> Blueprint:
    """Chat and text completions and the list of models."""
    routes = Blueprint("openai", __name__)

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    @described.chat
    def chat() -> Response:
        return desk.answer(chat_call())

    def chat_call() -> Call:
        sent = desk.read()
        body = desk.decode(sent, chat_schema.decoder)
        unsupported = desk.decode(sent, chat_schema.unsupported_decoder)
        card, vocabulary = desk.worker.card(body.model), desk.worker.vocabulary(body.model)
        return chat_calls.call(body, unsupported, desk.defaults, card, vocabulary)

    @routes.post("/v1/chat/completions/input_tokens")
    @routes.post("/chat/completions/input_tokens", endpoint="count_short")
    @described.count
    def count() -> Response:
        return json_response(input_tokens(desk.count(chat_call())))

    @routes.post("/v1/completions")
    @described.completion
    def complete() -> Response:
        sent = desk.read()
        body = desk.decode(sent, completion_schema.decoder)
        unsupported = desk.decode(sent, completion_schema.unsupported_decoder)
        card, vocabulary = desk.worker.card(body.model), desk.worker.vocabulary(body.model)
        return desk.answer(completion_calls.call(body, unsupported, desk.defaults, card, vocabulary))

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    @described.models
    def list_models() -> Response:
        return json_response(models.listing(desk.worker))

    @routes.get("/v1/models/<path:name>")
    @described.model
    def one_model(name: str) -> Response:
        return json_response(models.one(desk.worker, name))

    errors.register(routes)
    return routes
