"""The endpoints of the Responses API."""

from __future__ import annotations

from functools import partial

from flask import Blueprint, Response, request

from corosrv.base.errors import NotSupported
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import events
from corosrv.dialects.openai.responses import api_docs, conversations, items, mcp_rounds, parse, schema
from corosrv.dialects.openai.responses.answer_types import DeletedResponse
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.background import BackgroundResponses, PostEvent
from corosrv.dialects.openai.responses.mcp_answers import McpAnswer
from corosrv.dialects.openai.responses.mcp_client import McpLoop
from corosrv.dialects.openai.responses.mcp_items import McpAccess
from corosrv.dialects.openai.responses.store import ResponseStore, Shelf
from corosrv.dialects.openai.structured_fields import input_tokens
from corosrv.web.http.lean_flask import caller
from corosrv.web.http.reply import json_response, register_errors


def blueprint(
    flow: RequestFlow, store: ResponseStore, access: McpAccess, post_event: PostEvent | None = None
) -> Blueprint:
    """Responses: asked for, read again, deleted, and counted; and conversations. `access`: to MCP servers."""
    routes = Blueprint("responses", __name__)
    loop = McpLoop() if access.servers else None

    def answer(request_call: Call) -> Response:
        if loop is not None and isinstance(request_call.answer, McpAnswer):
            return mcp_rounds.answer(flow, loop, request_call)
        return flow.answer(request_call)

    background = BackgroundResponses(flow, answer, post_event)

    @routes.post("/v1/responses")
    @routes.post("/responses", endpoint="short")
    @flow.once
    @api_docs.respond
    def respond() -> Response:
        made = call()
        if isinstance(made.answer, ResponseAnswer) and made.answer.is_background:
            return background.start(made, made.answer)
        return answer(made)

    @routes.post("/v1/responses/input_tokens")
    @routes.post("/responses/input_tokens", endpoint="count_short")
    @api_docs.count
    def count() -> Response:
        made = call()
        if isinstance(made.answer, McpAnswer):
            words = "tools: those of MCP servers are not counted before they are listed for a response"
            raise NotSupported(words, "tools")
        return json_response(input_tokens(flow.count(made)))

    @routes.get("/v1/responses/<id>")
    @api_docs.read
    def read(id: str) -> Response:
        is_stream = request.args.get("stream", "false") != "false"
        for name in ("include",) if is_stream else ("starting_after", "include"):
            if name in request.args or f"{name}[]" in request.args:
                words = f"{name} is not offered for a stored response" + (" without stream" * (name != "include"))
                raise NotSupported(words, name, "unsupported_parameter")
        if is_stream:
            return background.follow(id, shelf())
        return json_response(background.read(id) or shelf().get(id).response)

    @routes.post("/v1/responses/<id>/cancel")
    @api_docs.cancel
    def cancel(id: str) -> Response:
        return json_response(background.cancel(id, shelf()))

    @routes.get("/v1/responses/<id>/input_items")
    @api_docs.input_items
    def read_input(id: str) -> Response:
        items.read_include(request.args)
        return json_response(items.page(background.input_of(id) or shelf().get(id).input, request.args))

    @routes.delete("/v1/responses/<id>")
    @api_docs.delete
    def delete(id: str) -> Response:
        background.drop(id, shelf())
        return json_response(DeletedResponse(id, "response", True))

    def call() -> Call:
        body = flow.receive(schema.decoder)
        card = flow.worker.card(body.model)
        find_vocabulary = partial(flow.worker.vocabulary, body.model)
        images = flow.images.intake(card, keeps_files=body.store is not False)
        return parse.call(body, flow.defaults, card, shelf(), find_vocabulary, images, access)

    def shelf() -> Shelf:
        return store.shelf(caller())

    conversations.add_routes(routes, flow, shelf)
    register_errors(routes, events.body)
    return routes
