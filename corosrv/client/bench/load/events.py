"""Events of a streamed completion, as far as a measurement needs them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class StreamDelta(msgspec.Struct):
    """The part of a chat's answer in one event; thoughts come under one of two more names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class StreamChoice(msgspec.Struct):
    text: str | None = None
    delta: StreamDelta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class StreamUsage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int = 0


class StreamEvent(msgspec.Struct):
    choices: list[StreamChoice] = []
    usage: StreamUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(StreamEvent).decode


class ErrorBody(msgspec.Struct):
    message: str = ""


class ErrorReply(msgspec.Struct):
    error: ErrorBody | str = ""


def error_message(body: bytes) -> str:
    """Returns the message in the body of an error, or the body's beginning."""
    try:
        error = msgspec.json.decode(body, type=ErrorReply).error
    except msgspec.DecodeError:
        error = ""
    text = error.message if isinstance(error, ErrorBody) else error
    return text or body[:200].decode("utf-8", "replace").strip()
