"""The types of Anthropic's answers, as the API document has them. The tests hold real answers against these types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ErrorMembers(msgspec.Struct):
    """An error's members: `message` for people, `type` for programs."""

    type: str
    message: str


class MessagesError(msgspec.Struct):
    """Any answer that is not the one asked for; also the event that ends a stream which failed."""

    type: Literal["error"]
    error: ErrorMembers
    request_id: str


class ContentBlock(msgspec.Struct):
    """A piece of the answer: text, a thought, or a call that the model wants made."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    signature: str | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    input: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class MessagesUsage(msgspec.Struct):
    """Token counts; the cached and the computed tokens of a prompt add up to all of it."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(msgspec.Struct):
    """A whole answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessagesEvent(msgspec.Struct):
    """One event of a streamed message; what else it holds goes by its `type`."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]


class TokenCount(msgspec.Struct):
    input_tokens: int
