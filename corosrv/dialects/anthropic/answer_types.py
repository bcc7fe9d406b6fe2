"""The types of Anthropic's answers, which the API document describes, too, and of its errors."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from corosrv.base.errors import CorosrvError, ErrorKind

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "abort"]


class UnsupportedThread(msgspec.Struct):
    """Tells a client that threads are not kept here: it sends the whole conversation without `thread` instead."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class MessagesErrorMembers(msgspec.Struct):
    """An error's members: `message` for people, `type` for programs, and `details` for clients that recover from it."""

    type: str
    message: str
    details: UnsupportedThread | msgspec.UnsetType = msgspec.UNSET


class MessagesError(msgspec.Struct):
    """The body of every error; also the event that ends a stream which failed."""

    type: Literal["error"]
    error: MessagesErrorMembers
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
    """Token counts; the cached and the computed tokens of a prompt add up to its length."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(msgspec.Struct):
    """A complete answer, or the empty one at the beginning of a stream."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class EventDelta(msgspec.Struct):
    """A piece of a content block, named by its `type`; without a `type`, at the end of the message, the stop reason."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    text: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    signature: str | msgspec.UnsetType = msgspec.UNSET
    partial_json: str | msgspec.UnsetType = msgspec.UNSET
    stop_reason: StopReason | msgspec.UnsetType | None = msgspec.UNSET
    stop_sequence: str | msgspec.UnsetType | None = msgspec.UNSET


class MessagesEvent(msgspec.Struct):
    """One event of a streamed message; which members it has depends on its `type`.

    The event that ends a failed stream is a `MessagesError`.
    """

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
    message: AnthropicMessage | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    content_block: ContentBlock | msgspec.UnsetType = msgspec.UNSET
    delta: EventDelta | msgspec.UnsetType = msgspec.UNSET
    usage: MessagesUsage | msgspec.UnsetType = msgspec.UNSET
    error: MessagesErrorMembers | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    input_tokens: int


_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.CONTEXT_EXCEEDED: "invalid_request_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.NOT_OFFERED: "invalid_request_error",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.CLIENT_GONE: "api_error",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.DEADLINE_PASSED: "api_error",
    ErrorKind.WORKER_LOST: "api_error",
    ErrorKind.FAILED: "api_error",
}


def body(error: CorosrvError, request_id: str) -> MessagesError:
    """Makes the answer or the event for an error."""
    details: UnsupportedThread | msgspec.UnsetType = msgspec.UNSET
    if error.param == "thread":
        details = UnsupportedThread("thread_unsupported_request", ["thread"])
    return MessagesError("error", MessagesErrorMembers(_TYPES[error.kind], str(error), details), request_id)
