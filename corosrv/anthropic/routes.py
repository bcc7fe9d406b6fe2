"""Anthropic's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from flask import Blueprint, Response, g

from corosrv.anthropic import api_docs, errors, parse, schema
from corosrv.errors import CorosrvError
from corosrv.generation.exchange import Call, RequestFlow
from corosrv.http import reply

Body = TypeVar("Body", bound=schema.PromptBody)


def blueprint(flow: RequestFlow) -> Blueprint:
    """Messages, and the tokens that they would have."""
    routes = Blueprint("anthropic", __name__)

    @routes.post("/v1/messages")
    @api_docs.messages
    def create() -> Response:
        return flow.answer(call(schema.decoder))

    @routes.post("/v1/messages/count_tokens")
    @api_docs.count
    def count() -> Response:
        return reply.json_response({"input_tokens": flow.count(call(schema.prompt_decoder))})

    def call(decoder: msgspec.json.Decoder[Body]) -> Call:
        body = flow.receive(decoder)
        return parse.call(body, flow.defaults, flow.worker.card(body.model), g.corosrv_request_id)

    @routes.after_request
    def name(response: Response) -> Response:
        """Their clients look for the request's id under this name."""
        response.headers["Request-Id"] = g.corosrv_request_id
        return response

    routes.register_error_handler(CorosrvError, reply.handler(errors.response))
    return routes
