"""The endpoints of the Responses API: responses, and the conversations that they belong to.

A conversation is begun, shown, labelled and deleted, and so are its items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import NotSupported
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import events
from corosrv.dialects.openai.responses import api_docs, items, mcp_rounds, parse, schema
from corosrv.dialects.openai.responses.answer_types import ConversationObject, DeletedConversation, DeletedResponse
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.background import BackgroundResponses, PostEvent
from corosrv.dialects.openai.responses.mcp_answers import McpAnswer
from corosrv.dialects.openai.responses.mcp_client import McpLoop
from corosrv.dialects.openai.responses.mcp_items import McpAccess
from corosrv.dialects.openai.responses.store import (
    MAX_CONVERSATION_BYTES,
    Item,
    ResponseStore,
    Shelf,
    StoredConversation,
    item_not_found,
)
from corosrv.dialects.openai.structured_fields import input_tokens
from corosrv.web.http.lean_flask import caller
from corosrv.web.http.reply import json_response, register_errors

_conversation = msgspec.json.Decoder(schema.ConversationBody)
_items = msgspec.json.Decoder(schema.ItemsBody)
_metadata = msgspec.json.Decoder(schema.MetadataBody)


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
        return parse.call(body, card, shelf(), find_vocabulary, images, access)

    def shelf() -> Shelf:
        return store.shelf(caller())

    _add_conversations(routes, flow, shelf)
    register_errors(routes, events.body)
    return routes


def _add_conversations(routes: Blueprint, flow: RequestFlow, shelf: Callable[[], Shelf]) -> None:
    """Adds the routes of conversations; `shelf` finds what belongs to the caller."""

    @routes.post("/v1/conversations")
    @flow.once
    @api_docs.begin
    def begin() -> Response:
        body = flow.receive(_conversation, MAX_CONVERSATION_BYTES)
        return _show(shelf().begin(body.metadata or {}, _valid(body.items or [], [], shelf())))

    @routes.get("/v1/conversations/<id>")
    @api_docs.show
    def show(id: str) -> Response:
        return _show(shelf().conversation(id))

    @routes.post("/v1/conversations/<id>")
    @api_docs.label
    def label(id: str) -> Response:
        return _show(shelf().label(id, flow.receive(_metadata, MAX_CONVERSATION_BYTES).metadata or {}))

    @routes.delete("/v1/conversations/<id>")
    @api_docs.end
    def end(id: str) -> Response:
        shelf().end(id)
        return json_response(DeletedConversation(id, "conversation.deleted", True))

    @routes.post("/v1/conversations/<id>/items")
    @flow.once
    @api_docs.extend
    def extend(id: str) -> Response:
        include = items.read_include(request.args, items.IMAGE_URLS)
        body = flow.receive(_items, MAX_CONVERSATION_BYTES)
        kept = items.decode_all(shelf().conversation(id).items.values())
        added = shelf().extend(id, _valid(body.items, kept, shelf()))
        return json_response(items.page_of(_view(added, include)))

    @routes.get("/v1/conversations/<id>/items")
    @api_docs.conversation_items
    def read_items(id: str) -> Response:
        include = items.read_include(request.args, items.IMAGE_URLS)
        kept = shelf().conversation(id).items
        page = items.page([{"id": item_id} for item_id in kept], request.args)
        page.data = _view(items.decode_all(kept[row["id"]] for row in page.data), include)
        return json_response(page)

    @routes.get("/v1/conversations/<id>/items/<item_id>")
    @api_docs.item
    def read_item(id: str, item_id: str) -> Response:
        include = items.read_include(request.args, items.IMAGE_URLS)
        kept = shelf().conversation(id).items.get(item_id)
        if kept is None:
            raise item_not_found(item_id)
        return json_response(_view([msgspec.json.decode(kept)], include)[0])

    @routes.delete("/v1/conversations/<id>/items/<item_id>")
    @api_docs.take_out
    def take_out(id: str, item_id: str) -> Response:
        return _show(shelf().take_out(id, item_id))


def _valid(new_items: list[Item], history: list[Item], shelf: Shelf) -> tuple[Item, ...]:
    """Returns new items as they are kept, behind those before. Raises Refused, which names the place."""
    if new_items:
        items.check_items(new_items, history, shelf)
    return items.list_items(new_items, shelf, "items")


def _view(rows: Iterable[Item], include: frozenset[str]) -> list[dict[str, Any]]:
    return list(rows if items.IMAGE_URLS in include else map(items.without_urls, rows))


def _show(conversation: StoredConversation) -> Response:
    return json_response(
        ConversationObject(conversation.id, "conversation", conversation.created_at, conversation.metadata)
    )
