"""OpenAI's endpoints over any Worker: parse, submit, answer."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.generation.exchange import Call, Desk
from corosrv.http.operation import GENERATES, operation
from corosrv.http.reply import json_response
from corosrv.openai import errors, models, shapes
from corosrv.openai.chat import calls as chat_calls
from corosrv.openai.chat import schema as chat_schema
from corosrv.openai.completions import calls as completion_calls
from corosrv.openai.completions import schema as completion_schema
from corosrv.openai.fields import input_tokens

CHAT_EXAMPLES = {
    "A question": {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 64},
    "Streamed, with usage": {
        "messages": [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": "Why is the sky blue?"},
        ],
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
}
COMPLETION_EXAMPLES = {
    "A prompt": {"prompt": "Once upon a time", "max_tokens": 32},
    "Several prompts, greedy": {"prompt": ["One, two,", "Red, green,"], "max_tokens": 8, "temperature": 0},
}


def blueprint(desk: Desk) -> Blueprint:
    """Chat and text completions and the list of models."""
    routes = Blueprint("openai", __name__)

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    @operation(
        "Chat",
        "Answer a conversation",
        "The conversation is written as the model's own chat template has it. A last message of the assistant's is "
        "continued. With `stream`, text comes as it is generated.",
        body=chat_schema.ChatBody,
        answer=shapes.ChatCompletion,
        events=shapes.ChatChunk,
        events_end="[DONE]",
        statuses=GENERATES,
        examples=CHAT_EXAMPLES,
    )
    def chat() -> Response:
        return desk.answer(chat_call())

    def chat_call() -> Call:
        sent = desk.read()
        body = desk.decode(sent, chat_schema.decoder)
        unsupported = desk.decode(sent, chat_schema.unsupported_decoder)
        return chat_calls.call(body, unsupported, desk.defaults, desk.worker.card(body.model))

    @routes.post("/v1/chat/completions/input_tokens")
    def count() -> Response:
        return json_response(input_tokens(desk.count(chat_call())))

    @routes.post("/v1/completions")
    @operation(
        "Text",
        "Continue a prompt",
        "A prompt is a text or a list of token ids, and there may be several. Each gets `n` answers.",
        body=completion_schema.CompletionBody,
        answer=shapes.TextCompletion,
        events=shapes.TextCompletion,
        events_end="[DONE]",
        statuses=GENERATES,
        examples=COMPLETION_EXAMPLES,
    )
    def complete() -> Response:
        sent = desk.read()
        body = desk.decode(sent, completion_schema.decoder)
        unsupported = desk.decode(sent, completion_schema.unsupported_decoder)
        card, vocabulary = desk.worker.card(body.model), desk.worker.vocabulary(body.model)
        return desk.answer(completion_calls.call(body, unsupported, desk.defaults, card, vocabulary))

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    @operation("Models", "List the models", answer=shapes.ModelList, statuses=(503,))
    def list_models() -> Response:
        return json_response(models.listing(desk.worker))

    @routes.get("/v1/models/<path:name>")
    @operation(
        "Models",
        "Describe one model",
        answer=shapes.ListedModel,
        statuses=(404, 503),
        parameters={"name": "its id, or one of its aliases"},
    )
    def one_model(name: str) -> Response:
        return json_response(models.one(desk.worker, name))

    errors.register(routes)
    return routes
