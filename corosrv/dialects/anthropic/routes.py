"""Defines Anthropic's endpoints over any Worker, with their entries in the API document: parse, submit, answer."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from flask import Blueprint, Response, g

from corosrv.base.errors import CorosrvError
from corosrv.dialects.anthropic import answers, parse, schema
from corosrv.dialects.anthropic.answers import MessagesError, TokenCount
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.images.intake import images_in
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http import reply
from corosrv.web.http.openapi import GENERATES, operation

_TAG = "Messages"

_MESSAGES_DOCS = operation(
    _TAG,
    "Answer a message",
    "As Anthropic's clients ask. A last message of the assistant's is continued: the answer is what follows it. With "
    "`stream`, events come block by block. " + images_in("`image` blocks of a user's message and of a `tool_result`"),
    body=schema.MessageBody,
    answer=answers.AnthropicMessage,
    events=answers.MessagesEvent,
    error=answers.MessagesError,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A question": {"max_tokens": 64, "messages": [{"role": "user", "content": "Name three colours."}]},
        "Streamed": {
            "max_tokens": 64,
            "system": "You answer in one sentence.",
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "stream": True,
        },
    },
)
_COUNT_DOCS = operation(
    _TAG,
    "Count a message's tokens",
    "As many as `input_tokens` would be in its usage.",
    body=schema.PromptBody,
    answer=answers.TokenCount,
    error=answers.MessagesError,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)


MESSAGES = "/v1/messages"

Body = TypeVar("Body", bound=schema.PromptBody)


def blueprint(flow: RequestFlow) -> Blueprint:
    """Makes the routes: messages, and the count of their tokens."""
    routes = Blueprint("anthropic", __name__)

    @routes.post(MESSAGES)
    @flow.once
    @_MESSAGES_DOCS
    def create() -> Response:
        return flow.answer(call(schema.decoder))

    @routes.post(f"{MESSAGES}/count_tokens")
    @_COUNT_DOCS
    def count() -> Response:
        return reply.json_response(TokenCount(flow.count(call(schema.prompt_decoder))))

    def call(decoder: msgspec.json.Decoder[Body]) -> Call:
        body = flow.receive(decoder)
        card = flow.worker.card(body.model)
        return parse.call(body, card, g.corosrv_request_id, flow.intake(card))

    @routes.after_request
    def name(response: Response) -> Response:
        """Adds the request's id under the name that Anthropic's clients look for."""
        response.headers["Request-Id"] = g.corosrv_request_id
        return response

    reply.register_errors(routes, error_body)
    return routes


def error_body(error: CorosrvError) -> MessagesError:
    """Makes the body of an error that ends the current request."""
    return answers.body(error, g.corosrv_request_id)


def has_path(path: str) -> bool:
    """Returns whether the path belongs to Anthropic's API, even if there is no such route."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
