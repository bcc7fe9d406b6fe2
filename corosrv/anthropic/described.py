"""What Anthropic's endpoints say about themselves in the API's document."""

from __future__ import annotations

from corosrv.anthropic import schema, shapes
from corosrv.http.operation import GENERATES, operation

_TAG = "Messages"

messages = operation(
    _TAG,
    "Answer a message",
    "As Anthropic's clients ask. With `stream`, events come block by block.",
    body=schema.MessageBody,
    answer=shapes.AnthropicMessage,
    events=shapes.MessagesEvent,
    error=shapes.MessagesError,
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
    answer=shapes.TokenCount,
    error=shapes.MessagesError,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)
