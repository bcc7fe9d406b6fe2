"""The entries of Anthropic's endpoints in the API document."""

from __future__ import annotations

from corosrv.dialects.anthropic import answer_types, schema
from corosrv.images.intake import images_in
from corosrv.web.groups.routes import GenerateHeaders
from corosrv.web.http.openapi import GENERATES, operation

_TAG = "Messages"

messages = operation(
    _TAG,
    "Answer a message",
    "As Anthropic's clients ask. A last message of the assistant's is continued: the answer is what follows it. With "
    "`stream`, events come block by block. " + images_in("`image` blocks of a user's message and of a `tool_result`"),
    body=schema.MessageBody,
    answer=answer_types.AnthropicMessage,
    events=answer_types.MessagesEvent,
    error=answer_types.MessagesError,
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
count = operation(
    _TAG,
    "Count a message's tokens",
    "As many as `input_tokens` would be in its usage.",
    body=schema.PromptBody,
    answer=answer_types.TokenCount,
    error=answer_types.MessagesError,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)
