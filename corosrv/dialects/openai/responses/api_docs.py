"""Describes the Responses API for the API document."""

from __future__ import annotations

from typing import Any

from corosrv.dialects.openai.answer_types import InputTokens
from corosrv.dialects.openai.responses import schema
from corosrv.dialects.openai.responses.answer_types import (
    CompactedResponse,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    ReadQuery,
    ResponseEvent,
    ResponseObject,
)
from corosrv.dialects.openai.responses.items import InputItems, InputQuery, ItemQuery, ItemsQuery
from corosrv.images.intake import images_in
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http.openapi import GENERATES, READS, operation

_TAG = "Responses"
_ID = {"id": "a response's id"}

respond = operation(
    _TAG,
    "Answer an input",
    "Kept on the server, within bounds, unless `store` is false: `previous_response_id` goes on from it. "
    "With `conversation` it goes on from that, and input and output are added to it when the response has ended. "
    "Tools of MCP servers that the operator allows are called here. "
    + images_in("parts of type `input_image` of a user's message and of a `function_call_output`"),
    body=schema.ResponseBody,
    answer=ResponseObject,
    events=ResponseEvent,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 424),
    examples={
        "A question": {"input": "Name three colours.", "max_output_tokens": 64},
        "Streamed": {
            "instructions": "You answer in one sentence.",
            "input": "Why is the sky blue?",
            "max_output_tokens": 64,
            "stream": True,
        },
    },
)
count = operation(
    _TAG,
    "Count an input's tokens",
    body=schema.ResponseBody,
    answer=InputTokens,
    statuses=GENERATES,
    examples={"A question": {"input": "Name three colours."}},
)
compact = operation(
    _TAG,
    "Compact a conversation",
    "The model sums it up. The answer's `output` is the messages of the user and a `compaction` item, which stand for "
    "the conversation as the `input` of later responses, also after a restart.",
    body=schema.CompactBody,
    answer=CompactedResponse,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A short conversation": {
            "input": [
                {"role": "user", "content": "Name three colours."},
                {"role": "assistant", "content": "Red, green and blue."},
            ]
        }
    },
)
read = operation(
    _TAG,
    "Read a stored response",
    "One that runs in the background as far as it has come; with `stream` its events, behind `starting_after`.",
    answer=ResponseObject,
    statuses=(400, 404, 410),
    parameters=_ID,
    query=ReadQuery,
)
cancel = operation(
    _TAG, "Cancel a response that runs in the background", answer=ResponseObject, statuses=(400, 404), parameters=_ID
)
input_items = operation(
    _TAG,
    "List the input of a stored response",
    "The items of the conversation that it answers, those of the responses before it among them.",
    answer=InputItems,
    statuses=(400, 404),
    parameters=_ID,
    query=InputQuery,
)
delete = operation(_TAG, "Delete a stored response", answer=DeletedResponse, statuses=(404,), parameters=_ID)

_CONVERSATIONS = "Conversations"
_CONVERSATION = {"id": "a conversation's id"}
_ITEM = {**_CONVERSATION, "item_id": "an item's id"}

begin = operation(
    _CONVERSATIONS,
    "Begin a conversation",
    "Kept on the server, in memory and within bounds, together with stored responses.",
    body=schema.ConversationBody,
    answer=ConversationObject,
    statuses=READS,
    examples={"A question": {"items": [{"role": "user", "content": "Name three colours."}]}},
)
show = operation(
    _CONVERSATIONS, "Show a conversation", answer=ConversationObject, statuses=(404,), parameters=_CONVERSATION
)
label = operation(
    _CONVERSATIONS,
    "Replace a conversation's metadata",
    body=schema.MetadataBody,
    answer=ConversationObject,
    statuses=(*READS, 404),
    parameters=_CONVERSATION,
)
end = operation(
    _CONVERSATIONS,
    "Delete a conversation with its items",
    "Responses that were given in it stay.",
    answer=DeletedConversation,
    statuses=(404,),
    parameters=_CONVERSATION,
)
extend = operation(
    _CONVERSATIONS,
    "Add items to a conversation",
    body=schema.ItemsBody,
    answer=InputItems,
    statuses=(*READS, 404),
    parameters=_CONVERSATION,
    query=ItemQuery,
)
conversation_items = operation(
    _CONVERSATIONS,
    "List the items of a conversation",
    answer=InputItems,
    statuses=(400, 404),
    parameters=_CONVERSATION,
    query=ItemsQuery,
)
item = operation(
    _CONVERSATIONS,
    "Show an item of a conversation",
    answer=dict[str, Any],
    statuses=(400, 404),
    parameters=_ITEM,
    query=ItemQuery,
)
take_out = operation(
    _CONVERSATIONS,
    "Delete an item of a conversation",
    answer=ConversationObject,
    statuses=(404,),
    parameters=_ITEM,
)
