"""Types of Anthropic's answers and errors, which the API document describes, and how an answer's blocks become them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from corosrv.base.errors import CorosrvError, ErrorKind
from corosrv.contracts.jobs import Chunk, ModelCard
from corosrv.contracts.jobs.job import new_id
from corosrv.dialects.chat.answer import AnswerBlock, BlockAnswer, BlockKind
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation.call import named_event

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


_STOP_REASON: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "cancelled": "abort",
}


class MessageAnswer(BlockAnswer):
    """Makes one message from its blocks."""

    def __init__(self, card: ModelCard, parser: Parser, request_id: str, *, omits_thoughts: bool = False) -> None:
        """`request_id` becomes a member of errors. `omits_thoughts`: blocks of thoughts are there, and empty."""
        super().__init__(parser)
        self._omits_thoughts = omits_thoughts
        self._request_id = request_id
        self._has_begun = False
        self._id = new_id("msg_")
        self._model = card.id

    def complete_answer(self) -> AnthropicMessage:
        content = [_content(block, "" if self._omits(block) else block.text) for block in self.blocks.row]
        return self._message(content, *self._stop(), self._usage())

    def first(self) -> bytes:
        return b":\n\n"  # the first event has the length of the prompt, which is known when the job has begun

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        begin = b"" if self._has_begun else self._begin(chunks[0].prompt_tokens, chunks[0].cached_tokens)
        return begin + super().events(chunks)

    def _begin(self, prompt_tokens: int, cached_tokens: int) -> bytes:
        self._has_begun = True
        message = self._message([], None, None, _usage(prompt_tokens, cached_tokens, 0))
        return _event(MessagesEvent("message_start", message=message)) + _event(MessagesEvent("ping"))

    def block_start(self, block: AnswerBlock) -> bytes:
        return _event(MessagesEvent("content_block_start", index=block.number, content_block=_content(block, "")))

    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        return b"" if self._omits(block) else _delta_event(block, _delta(block.kind, piece))

    def _omits(self, block: AnswerBlock) -> bool:
        return self._omits_thoughts and block.kind is BlockKind.REASONING

    def block_end(self, block: AnswerBlock) -> bytes:
        events = b""
        if block.kind is BlockKind.REASONING:
            # Nobody signs thoughts here; clients wait for it all the same.
            events = _delta_event(block, EventDelta("signature_delta", signature=""))
        return events + _event(MessagesEvent("content_block_stop", index=block.number))

    def answer_end(self) -> bytes:
        reason, word = self._stop()
        delta = EventDelta(stop_reason=reason, stop_sequence=word)
        end = MessagesEvent("message_delta", delta=delta, usage=self._usage())
        return _event(end) + _event(MessagesEvent("message_stop"))

    def failure(self, error: CorosrvError) -> bytes:
        begin = b"" if self._has_begun else self._begin(0, 0)
        return begin + named_event("error", body(error, self._request_id))

    def _message(
        self, content: list[ContentBlock], reason: StopReason | None, word: str | None, usage: MessagesUsage
    ) -> AnthropicMessage:
        return AnthropicMessage(self._id, "message", "assistant", self._model, content, reason, word, usage)

    def _stop(self) -> tuple[StopReason, str | None]:
        """Returns why the message ended, and the stop word that ended it."""
        end = self.blocks.end
        assert end is not None
        if end.reason == "stop" and end.chunk.stopping_word:
            return "stop_sequence", end.chunk.stopping_word
        return _STOP_REASON[end.reason], None

    def _usage(self) -> MessagesUsage:
        return _usage(self.tally.prompt_tokens, self.tally.cached_tokens, self.tally.completion_tokens)


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> MessagesUsage:
    return MessagesUsage(prompt_tokens - cached_tokens, 0, cached_tokens, completion_tokens)


def _event(event: MessagesEvent) -> bytes:
    return named_event(event.type, event)


def _delta_event(block: AnswerBlock, delta: EventDelta) -> bytes:
    return _event(MessagesEvent("content_block_delta", index=block.number, delta=delta))


def _delta(kind: BlockKind, piece: str) -> EventDelta:
    if kind is BlockKind.TEXT:
        return EventDelta("text_delta", text=piece)
    if kind is BlockKind.REASONING:
        return EventDelta("thinking_delta", thinking=piece)
    return EventDelta("input_json_delta", partial_json=piece)


def _content(block: AnswerBlock, text: str) -> ContentBlock:
    if block.kind is BlockKind.TEXT:
        return ContentBlock("text", text=text)
    if block.kind is BlockKind.REASONING:
        return ContentBlock("thinking", thinking=text, signature="")
    return ContentBlock("tool_use", id=block.id, name=block.name, input=_input(text))


def _input(text: str) -> Any:
    """Decodes a call's arguments. Returns an empty object for a call that was cut off: half a JSON text is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
