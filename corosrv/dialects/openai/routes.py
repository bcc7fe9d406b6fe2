"""OpenAI's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

from functools import partial

from flask import Blueprint, Response

from corosrv.base.waits import call_in_thread
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.embeds import EmbedsReader
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import api_docs, events, models
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.dialects.openai.completions import parse as completion_parse
from corosrv.dialects.openai.completions import schema as completion_schema
from corosrv.dialects.openai.structured_fields import input_tokens
from corosrv.web.http.reply import json_response, register_errors


def blueprint(flow: RequestFlow) -> Blueprint:
    """Makes the routes of chat and text completions and of the list of models."""
    routes = Blueprint("openai", __name__)

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    @flow.once
    @api_docs.chat
    def chat() -> Response:
        return flow.answer(chat_call())

    def chat_call() -> Call:
        body = flow.receive(chat_schema.decoder)
        find_vocabulary = partial(flow.worker.vocabulary, body.model)
        card = flow.worker.card(body.model)
        return chat_parse.call(body, flow.defaults, card, find_vocabulary, flow.images.intake(card))

    @routes.post("/v1/chat/completions/input_tokens")
    @routes.post("/chat/completions/input_tokens", endpoint="count_short")
    @api_docs.count
    def count() -> Response:
        return json_response(input_tokens(flow.count(chat_call())))

    @routes.post("/v1/completions")
    @flow.once
    @api_docs.completion
    def complete() -> Response:
        body = flow.receive(completion_schema.decoder)
        find_vocabulary = partial(flow.worker.vocabulary, body.model)
        card = flow.worker.card(body.model)
        images = flow.images.intake(card)
        embeds = EmbedsReader(flow.takes_embeds, partial(flow.worker.card, body.model), call_in_thread)
        return flow.answer(completion_parse.call(body, flow.defaults, card, find_vocabulary, images, embeds))

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    @api_docs.models
    def list_models() -> Response:
        return json_response(models.listing(flow.worker, flow.takes_embeds))

    @routes.get("/v1/models/<path:name>")
    @api_docs.model
    def one_model(name: str) -> Response:
        return json_response(models.find(flow.worker, name, flow.takes_embeds))

    register_errors(routes, events.body)
    return routes
