"""OpenAI's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

import logging

from flask import Blueprint, Response, request

from corosrv.errors import CorosrvError
from corosrv.generation.exchange import Desk
from corosrv.http.reply import json_response
from corosrv.openai import errors, models
from corosrv.openai.chat import calls as chat_calls
from corosrv.openai.chat import schema as chat_schema
from corosrv.openai.completions import calls as completion_calls
from corosrv.openai.completions import schema as completion_schema

log = logging.getLogger("corosrv.openai")


def blueprint(desk: Desk) -> Blueprint:
    """Chat and text completions and the list of models."""
    routes = Blueprint("openai", __name__)

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    def chat() -> Response:
        sent = desk.read()
        body = desk.decode(sent, chat_schema.decoder)
        unsupported = desk.decode(sent, chat_schema.unsupported_decoder)
        return desk.answer(chat_calls.call(body, unsupported, desk.defaults, desk.worker.card(body.model)))

    @routes.post("/v1/completions")
    def complete() -> Response:
        sent = desk.read()
        body = desk.decode(sent, completion_schema.decoder)
        unsupported = desk.decode(sent, completion_schema.unsupported_decoder)
        return desk.answer(completion_calls.call(body, unsupported, desk.defaults, desk.worker.card(body.model)))

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    def list_models() -> Response:
        return json_response(models.listing(desk.worker))

    @routes.get("/v1/models/<path:name>")
    def one_model(name: str) -> Response:
        return json_response(models.one(desk.worker, name))

    @routes.errorhandler(CorosrvError)
    def refuse(error: CorosrvError) -> Response:
        answer = errors.response(error)
        if answer.status_code >= 500:
            log.warning("%s %s: %s", request.method, request.path, error)
        return answer

    return routes
