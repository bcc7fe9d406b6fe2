"""The endpoints of the Responses API: responses, and the conversations that they belong to.

A conversation is begun, shown, labelled and deleted, and so are its items. Responses that run without their clients are
read while they run, followed, and cancelled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import gevent
import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import EventsGone, NotFound, NotSupported, Refused
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import events
from corosrv.dialects.openai.responses import api_docs, items, mcp_rounds, parse, schema
from corosrv.dialects.openai.responses.answer_types import (
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    ResponseObject,
)
from corosrv.dialects.openai.responses.answers import ResponseAnswer
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
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.kept.answer_log import AnswerLog
from corosrv.web.kept.streams import LAST_EVENT, ResumableStreams, last_event, parse_number

END_S = 10.0  # in which a response that is cancelled has ended
_LOOK_S = 60.0  # between two looks at a response whose end is to be reported


PostEvent = Callable[[bytes, str], None]  # an event as JSON, and its name for the log


def _tell(post_event: PostEvent, log: AnswerLog, answer: ResponseAnswer) -> None:
    """Waits for the end of a response, which its own limits bound, and sends the event of it."""
    while not log.wait_for_end(_LOOK_S):
        continue
    type = f"response.{answer.final_status}"
    event = {
        "id": f"evt_{secrets.token_hex(24)}",
        "object": "event",
        "created_at": int(time.time()),
        "type": type,
        "data": {"id": answer.id},
    }
    post_event(msgspec.json.encode(event), f"{answer.id}: webhook {type}")


class BackgroundResponses:
    """The background responses of all callers, each found by its own caller alone. Belongs to the hub's thread.

    One runs to its end, whether or not somebody reads it; then it is stored like others, also if it failed.
    """

    def __init__(self, flow: RequestFlow, answer: Callable[[Call], Response], post_event: PostEvent | None) -> None:
        """`answer`: begins a call, and answers as it asks; `post_event`: sends the event of a response that has ended
        to whoever the operator has named."""
        self._flow = flow
        self._answer = answer
        self._post_event = post_event
        self._answers: WeakKeyDictionary[AnswerLog, ResponseAnswer] = WeakKeyDictionary()

    def start(self, call: Call, answer: ResponseAnswer) -> Response:
        """Begins a response; answers with its stream, or as far as it has come. Raises what `answer` does,
        and NotSupported where no streams can be resumed."""
        streams = self._streams
        if streams is None or not streams.logs.is_on:
            raise NotSupported("background: no streams can be resumed here (see COROSRV_RESUME_S)", "background")
        streamed = msgspec.structs.replace(call, stream=True)
        response = streams.call(lambda: self._answer(streamed))
        log = streams.keep(response, [("response", answer.id)], needs_client=False)
        self._answers[log] = answer
        if self._post_event is not None:
            gevent.spawn(_tell, self._post_event, log, answer)
        if call.stream:
            return response
        response.response.close()  # type: ignore[union-attr]  # its stream, which nobody reads
        return json_response(answer.snapshot())

    @property
    def _streams(self) -> ResumableStreams | None:
        return self._flow.answers.streams

    def _find(self, id: str) -> AnswerLog | None:
        return None if self._streams is None else self._streams.find(("response", id))

    def read(self, id: str) -> ResponseObject | None:
        """Returns a running response as far as it has come; None if the caller has none with this id."""
        log = self._find(id)
        return None if log is None or log.is_ended else self._answers[log].snapshot()

    def input_of(self, id: str) -> Sequence[Item]:
        """Returns the input of a running response; nothing if the caller has none with this id."""
        log = self._find(id)
        return () if log is None or log.is_ended else self._answers[log].input_items

    def follow(self, id: str, shelf: Shelf) -> Response:
        """Answers with the events of a response behind `starting_after`, those of its stream that are yet to come too.

        Raises NotFound, Refused, EventsGone, and NotSupported for a response that never ran in the background.
        """
        log, starting_after = self._find(id), current(request).args.get("starting_after")
        if log is None or self._streams is None:
            if shelf.get(id).response.background:
                raise EventsGone("the events", None, "stream")
            words = "stream is offered for responses with background alone"
            raise NotSupported(words, "stream", "unsupported_parameter")
        if starting_after is None:
            return self._streams.response(log.follow(last_event(current(request).environ) or 0, LAST_EVENT))
        number = parse_number(starting_after, "starting_after") + 1  # responses number their events from 0 on
        return self._streams.response(log.follow(number, "starting_after"))

    def cancel(self, id: str, shelf: Shelf) -> ResponseObject:
        """Ends a response, unless it has ended, and returns it. Waits until it has ended.

        Raises NotFound, and Refused for a response that never ran in the background.
        """
        log = self._find(id)
        if log is not None and not log.is_ended:
            self._answers[log].is_cancelled = True
            log.cancel()
            if not log.wait_for_end(END_S):
                return self._answers[log].snapshot()
        response = shelf.get(id).response
        if not response.background:
            raise Refused("only a response with background: true can be cancelled", "id")
        return response

    def drop(self, id: str, shelf: Shelf) -> None:
        """Ends a response, and forgets it and its events. Waits until it has ended. Raises NotFound."""
        log = self._find(id)
        if log is not None:
            try:
                self.cancel(id, shelf)
            except NotFound:  # too large to be stored
                log.drop()
                return
            log.drop()
        shelf.drop(id)


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

    @routes.post("/v1/responses/compact")
    @routes.post("/responses/compact", endpoint="compact_short")
    @flow.once
    @api_docs.compact
    def compact() -> Response:
        body = flow.receive(schema.compact_decoder)
        card = flow.worker.card(body.model)
        find_vocabulary = partial(flow.worker.vocabulary, body.model)
        return flow.answer(parse.compaction(body, card, shelf(), find_vocabulary, flow.intake(card, keeps_files=True)))

    @routes.get("/v1/responses/<id>")
    @api_docs.read
    def read(id: str) -> Response:
        is_stream = request.args.get("stream", "false") != "false"
        items.read_include(request.args)
        if not is_stream and "starting_after" in request.args:
            words = "starting_after is not offered for a stored response without stream"
            raise NotSupported(words, "starting_after", "unsupported_parameter")
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
        images = flow.intake(card, keeps_files=body.store is not False)
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
