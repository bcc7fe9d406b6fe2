"""Defines Anthropic's endpoints over any Worker, with their entries in the API document: parse, submit, answer.

Batches of messages are kept and run by what keeps and runs batches of files: their requests become its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec
from flask import Blueprint, Response, g, request, url_for

from corosrv.base.errors import BodyTooLarge, CorosrvError, NotFound, NotOffered, Refused
from corosrv.base.processor import Turns
from corosrv.base.waits import call_in_thread
from corosrv.dialects.anthropic import answers, parse, schema
from corosrv.dialects.anthropic.answers import MessagesError, TokenCount
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai.batches import lines
from corosrv.dialects.openai.batches.routes import on_disk
from corosrv.formats.bodies import convert
from corosrv.images.intake import images_in
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http import body_reader, reply
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import GENERATES, READS, operation

if TYPE_CHECKING:  # most servers need none of it
    from corosrv.dialects.openai.batches.folder import FileFolder, OwnerFolder, StoredBatch

_TAG = "Messages"
_BATCH = {"id": "a batch's id"}
_PIECE = 256 << 10  # bytes of results that are read at once

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

    return _finish(routes)


def _finish(routes: Blueprint) -> Blueprint:
    """Gives answers the request's id under the name that Anthropic's clients look for, and errors their form."""

    @routes.after_request
    def name(response: Response) -> Response:
        response.headers["Request-Id"] = g.corosrv_request_id
        return response

    reply.register_errors(routes, error_body)
    return routes


def batches_blueprint(
    folder: FileFolder | None, bodies: BodyReader, max_body_bytes: int, wake: Callable[[], None] = lambda: None
) -> Blueprint:
    """Batches of messages. `folder`: None where none is set; `wake`: tells whoever runs batches of a new one."""
    routes = Blueprint("message_batches", __name__, url_prefix=f"{MESSAGES}/batches")

    def describe(
        summary: str, text: str = "", *, answer: Any = answers.MessageBatch, statuses: tuple[int, ...], **members: Any
    ) -> Callable[[Any], Any]:
        return operation(
            "Batches", summary, text, answer=answer, error=answers.MessagesError, statuses=(*statuses, 501), **members
        )

    def own() -> OwnerFolder:
        if folder is None:
            raise NotOffered("batches are not kept here: set COROSRV_FILES_PATH to a folder")
        return folder.owned_by(caller())

    def view(stored: StoredBatch) -> answers.MessageBatch:
        results_url = current(request).host_url.rstrip("/") + url_for(".results", id=stored.batch.id)
        return answers.batch_answer(stored, results_url)

    @routes.post("")
    @describe(
        "Make a batch of messages",
        "As Anthropic's clients ask. Its requests run behind all others, and have 24 hours; what is wrong in the "
        "`params` of one, its result tells. Needs a folder for files (`COROSRV_FILES_PATH`).",
        body=schema.MessageBatchBody,
        statuses=(*READS, 429, 503),
        examples={
            "One question": {
                "requests": [
                    {
                        "custom_id": "one",
                        "params": {"max_tokens": 64, "messages": [{"role": "user", "content": "Name a river."}]},
                    }
                ]
            }
        },
    )
    def create() -> Response:
        own_folder, incoming = own(), current(request)
        body = body_reader.decode(incoming, bodies.read(incoming, max_body_bytes), schema.batch_decoder)
        texts = list(Turns().among(_line_texts(body, max_body_bytes)))
        stored = on_disk(own_folder.add_messages, caller(), texts)
        wake()
        return reply.json_response(view(stored))

    @routes.get("")
    @describe(
        "List batches of messages",
        "The newest first.",
        answer=answers.MessageBatchList,
        statuses=(400,),
        query=schema.MessageBatchesQuery,
    )
    def batches() -> Response:
        own_folder, query = own(), convert(dict(request.args), schema.MessageBatchesQuery, strict=False)
        if query.after_id is not None and query.before_id is not None:
            raise Refused("before_id: a page is behind one batch, or before one: leave out after_id", "before_id")
        page, has_more = on_disk(own_folder.messages_page, query.after_id, query.before_id, query.limit)
        data = [view(stored) for stored in Turns().among(page)]
        ends = (data[0].id, data[-1].id) if data else (None, None)
        return reply.long_json_response(msgspec.to_builtins(answers.MessageBatchList(data, has_more, *ends)))

    @routes.get("/<id>")
    @describe("Show a batch of messages", statuses=(404,), parameters=_BATCH)
    def batch(id: str) -> Response:
        return reply.json_response(view(on_disk(own().messages, id)))

    @routes.get("/<id>/results")
    @describe(
        "Read a batch's results",
        "A line of JSON for each request, when the batch has ended, in no order: `custom_id` says whose it is.",
        answer=answers.MessageBatchLine,
        media_type="application/x-jsonl",
        statuses=(400, 404),
        parameters=_BATCH,
    )
    def results(id: str) -> Response:
        return Response(on_disk(ResultPieces, own(), id), content_type="application/x-jsonl")

    @routes.post("/<id>/cancel")
    @describe(
        "Cancel a batch of messages",
        "Requests that run are stopped; the answers of those that have ended stay.",
        statuses=(400, 404),
        parameters=_BATCH,
    )
    def cancel(id: str) -> Response:
        return reply.json_response(view(on_disk(own().cancel_messages, id)))

    @routes.delete("/<id>")
    @describe(
        "Delete a batch of messages",
        "With its results, when it has ended.",
        answer=answers.DeletedMessageBatch,
        statuses=(400, 404),
        parameters=_BATCH,
    )
    def delete(id: str) -> Response:
        on_disk(own().forget_messages, id)
        return reply.json_response(answers.DeletedMessageBatch(id, "message_batch_deleted"))

    return _finish(routes)


def _line_texts(body: schema.MessageBatchBody, most_bytes: int) -> Iterator[bytes]:
    """Yields the requests of a batch as lines. Raises Refused for one that could not run."""
    known: set[str] = set()
    for number, batched in enumerate(body.requests):
        place = f"requests[{number}]"
        if batched.custom_id in known:
            words = f"{place}.custom_id: {batched.custom_id!r} is an earlier request's, too"
            raise Refused(words, f"{place}.custom_id")
        known.add(batched.custom_id)
        text = lines.request_text(batched.custom_id, MESSAGES, batched.params)
        if len(text) > most_bytes:
            raise BodyTooLarge(most_bytes)
        try:
            lines.parse(text, MESSAGES)
        except Refused as refused:
            param = f"{place}.{(refused.param or 'params').replace('body', 'params', 1)}"
            raise Refused(f"{param}: must be the body of a message, without streams", param, refused.code) from None
        yield text


class ResultPieces:
    """The results of a batch as the body of an answer, read in a thread piece by piece. Closed by whoever sends it."""

    def __init__(self, folder: OwnerFolder, id: str) -> None:
        """Raises NotFound, and Refused while there are none. Waits for the disk."""
        self._files = ExitStack()
        stored = folder.messages(id)
        if not stored.batch.is_ended:
            raise Refused(f"id: the batch is {stored.batch.status}: its results are there when it has ended", "id")
        faults = stored.batch.errors.data if stored.batch.errors else []
        if any(fault.code == lines.BROKEN for fault in faults):
            raise NotFound("id: somebody has overwritten the results of this batch", "id")
        self._left: list[BinaryIO] = []
        for content in (stored.output, stored.errors):
            with suppress(FileNotFoundError):  # there is none where no request has such a result
                self._left.append(self._files.enter_context(folder.content_path(content).open("rb")))

    def __iter__(self) -> Iterator[bytes]:
        while self._left:
            if piece := call_in_thread(self._next_piece):
                yield piece
            else:
                self._left.pop(0)

    def _next_piece(self) -> bytes:
        return b"".join(map(answers.batch_line, self._left[0].readlines(_PIECE)))

    def close(self) -> None:
        self._files.close()


def error_body(error: CorosrvError) -> MessagesError:
    """Makes the body of an error that ends the current request."""
    return answers.body(error, g.corosrv_request_id)


def has_path(path: str) -> bool:
    """Returns whether the path belongs to Anthropic's API, even if there is no such route."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
