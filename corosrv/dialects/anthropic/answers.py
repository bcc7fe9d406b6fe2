"""Makes Anthropic's messages and events from an answer's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk, ModelCard
from corosrv.contracts.jobs.job import new_id
from corosrv.dialects.anthropic import answer_types
from corosrv.dialects.anthropic.answer_types import (
    AnthropicMessage,
    ContentBlock,
    EventDelta,
    MessagesEvent,
    MessagesUsage,
    StopReason,
)
from corosrv.dialects.chat.answer import AnswerBlock, BlockAnswer, BlockKind
from corosrv.dialects.chat.parser import Parser
from corosrv.dialects.generation.call import named_event

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
        return begin + named_event("error", answer_types.body(error, self._request_id))

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
