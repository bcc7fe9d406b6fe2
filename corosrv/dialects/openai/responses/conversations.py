"""The endpoints of conversations: begun, shown, labelled, deleted, and their items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai.responses import api_docs, items, schema
from corosrv.dialects.openai.responses.answer_types import ConversationObject, DeletedConversation
from corosrv.dialects.openai.responses.store import (
    MAX_CONVERSATION_BYTES,
    Item,
    Shelf,
    StoredConversation,
    item_not_found,
)
from corosrv.web.http.reply import json_response

_conversation = msgspec.json.Decoder(schema.ConversationBody)
_items = msgspec.json.Decoder(schema.ItemsBody)
_metadata = msgspec.json.Decoder(schema.MetadataBody)


def add_routes(routes: Blueprint, flow: RequestFlow, shelf: Callable[[], Shelf]) -> None:
    """Adds the routes; `shelf` finds what belongs to the caller."""

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
