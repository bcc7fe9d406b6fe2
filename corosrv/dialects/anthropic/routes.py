"""Defines Anthropic's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from flask import Blueprint, Response, g

from corosrv.base.errors import CorosrvError
from corosrv.dialects.anthropic import answer_types, api_docs, parse, schema
from corosrv.dialects.anthropic.answer_types import MessagesError, TokenCount
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.web.http import reply

MESSAGES = "/v1/messages"

Body = TypeVar("Body", bound=schema.PromptBody)


def blueprint(flow: RequestFlow) -> Blueprint:
    """Makes the routes: messages, and the count of their tokens."""
    routes = Blueprint("anthropic", __name__)

    @routes.post(MESSAGES)
    @flow.once
    @api_docs.messages
    def create() -> Response:
        return flow.answer(call(schema.decoder))

    @routes.post(f"{MESSAGES}/count_tokens")
    @api_docs.count
    def count() -> Response:
        return reply.json_response(TokenCount(flow.count(call(schema.prompt_decoder))))

    def call(decoder: msgspec.json.Decoder[Body]) -> Call:
        body = flow.receive(decoder)
        card = flow.worker.card(body.model)
        return parse.call(body, card, g.corosrv_request_id, flow.images.intake(card))

    @routes.after_request
    def name(response: Response) -> Response:
        """Adds the request's id under the name that Anthropic's clients look for."""
        response.headers["Request-Id"] = g.corosrv_request_id
        return response

    reply.register_errors(routes, error_body)
    return routes


def error_body(error: CorosrvError) -> MessagesError:
    """Makes the body of an error that ends the current request."""
    return answer_types.body(error, g.corosrv_request_id)


def has_path(path: str) -> bool:
    """Returns whether the path belongs to Anthropic's API, even if there is no such route."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
