"""Messages, the way out: blocks to content blocks and events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from corosrv.anthropic import errors
from corosrv.chat.answer import BlockAnswer
from corosrv.chat.blocks import AnswerBlock, BlockKind
from corosrv.chat.parser import Parser
from corosrv.errors import CorosrvError
from corosrv.generation.events import named_event
from corosrv.jobs import Chunk, ModelCard

_STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_NOT_STOPPED: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
# What the event of a piece calls it, and the member that it stands in.
_DELTA = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageAnswer(BlockAnswer):
    """One message being put together."""

    def __init__(self, card: ModelCard, parser: Parser, request_id: str) -> None:
        """`request_id` is for an error: it is part of what it looks like."""
        super().__init__(parser)
        self._request_id = request_id
        self._has_begun = False
        self._members = {"id": "msg_" + secrets.token_hex(16), "type": "message", "role": "assistant", "model": card.id}

    def whole_answer(self) -> dict[str, Any]:
        content = [_content(block, block.text) for block in self.blocks.row]
        return {**self._members, "content": content, **self._stop(), "usage": self._usage()}

    def first(self) -> bytes:
        return b":\n\n"  # how long the prompt is, which the first event tells, is known when it is begun

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        begin = b"" if self._has_begun else self._begin(chunks[0].prompt_tokens, chunks[0].cached_tokens)
        return begin + super().events(chunks)

    def _begin(self, prompt_tokens: int, cached_tokens: int) -> bytes:
        self._has_begun = True
        usage = _usage(prompt_tokens, cached_tokens, 0)
        message = {**self._members, "content": [], **_NOT_STOPPED, "usage": usage}
        return named_event({"type": "message_start", "message": message}) + named_event({"type": "ping"})

    def block_start(self, block: AnswerBlock) -> bytes:
        return _event("content_block_start", block, content_block=_content(block, ""))

    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        kind, member = _DELTA[block.kind]
        return _event("content_block_delta", block, delta={"type": kind, member: piece})

    def block_end(self, block: AnswerBlock) -> bytes:
        events = b""
        if block.kind is BlockKind.REASONING:
            # Nobody signs thoughts here; clients wait for it all the same.
            events = _event("content_block_delta", block, delta={"type": "signature_delta", "signature": ""})
        return events + _event("content_block_stop", block)

    def answer_end(self) -> bytes:
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        return named_event(delta) + named_event({"type": "message_stop"})

    def failure(self, error: CorosrvError) -> bytes:
        begin = b"" if self._has_begun else self._begin(0, 0)
        return begin + named_event(errors.body(error, self._request_id))

    def _stop(self) -> dict[str, Any]:
        end = self.blocks.end
        assert end is not None
        if end.reason == "stop" and end.chunk.stopping_word:
            return {"stop_reason": "stop_sequence", "stop_sequence": end.chunk.stopping_word}
        return {"stop_reason": _STOP_REASON[end.reason], "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        return _usage(self.tally.prompt_tokens, self.tally.cached_tokens, self.tally.completion_tokens)


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": completion_tokens,
    }


def _event(type: str, block: AnswerBlock, **members: Any) -> bytes:
    return named_event({"type": type, "index": block.number, **members})


def _content(block: AnswerBlock, text: str) -> dict[str, Any]:
    if block.kind is BlockKind.TEXT:
        return {"type": "text", "text": text}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(text)}


def _input(text: str) -> Any:
    """A call's arguments; those of a call that was cut off are lost: half a JSON text is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
