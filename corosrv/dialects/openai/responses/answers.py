"""Responses, the way out: blocks to items and events."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, cast

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk
from corosrv.dialects.chat.answer import AnswerBlock, BlockAnswer, BlockKind
from corosrv.dialects.chat.conversation import Turn, TurnList, arguments
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation import native
from corosrv.dialects.generation.call import AnswerOptions, Telemetry, named_event, split_tokens
from corosrv.dialects.openai.responses.answer_types import (
    NO_LOGPROBS,
    CompactedResponse,
    CutReason,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputPart,
    OutputTokensDetails,
    ResponseError,
    ResponseEvent,
    ResponseItem,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)
from corosrv.dialects.openai.responses.items import seal
from corosrv.dialects.openai.responses.store import Stored, item_id

# The beginning of an item's id, and what the events of its text are called.
_ID = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}
_EVENT = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_CUT_REASONS: dict[str, CutReason] = {"length": "max_output_tokens", "cancelled": "abort"}
_CUSTOM_INPUT = "response.custom_tool_call_input"
_NO_OPTIONS = AnswerOptions()
_NO_NAMESPACES: Mapping[str, tuple[str, str]] = {}


class ResponseAnswer(BlockAnswer):
    """One response being put together: each block becomes an item of its output."""

    def __init__(
        self,
        echo: dict[str, Any],
        parser: Parser,
        turns: tuple[Turn, ...],
        keep: Callable[[Stored], None] | None,
        options: AnswerOptions = _NO_OPTIONS,
        origins: Mapping[str, tuple[str, str]] = _NO_NAMESPACES,
        input_items: tuple[dict[str, Any], ...] = (),
        customs: Set[str] = frozenset(),
    ) -> None:
        """`turns` and `input_items` are the conversation before it; `keep` stores it at the end; its events show what
        `options` say.

        `origins` has namespace and name of the functions that are called by another name; `customs` the names of
        those that stand for custom tools.
        """
        super().__init__(parser)
        self.blocks.keeps_tokens = options.logprobs
        self._described: dict[int, list[bytes]] = defaultdict(list)  # JSON of the tokens of each text
        self._n_described: dict[int, int] = defaultdict(int)
        self._options = options
        self._telemetry = Telemetry(1, options)
        self._timings: dict[str, Any] = {}  # of the chunk whose events are made
        self._key = secrets.token_hex(20)
        self.id = "resp_" + self._key
        self._created = int(time.time())
        self._echo = echo
        self._turns = turns
        self._keep = keep
        self._origins = origins
        self._customs = customs
        self._inputs: dict[int, _InputReader] = defaultdict(_InputReader)  # of calls of custom tools
        self.input_items = input_items
        self._sequence_number = 0
        self.is_background: bool = echo["background"]
        self.is_cancelled = False  # by its own route
        self.final_status: ResponseStatus = "failed"  # what it is if nothing else comes

    def snapshot(self) -> ResponseObject:
        """Makes the response as far as it has come."""
        return self._response("in_progress")

    def complete_answer(self) -> ResponseObject:
        response = self._response("incomplete" if self._is_cut else "completed")
        if self._keep is not None:
            self._keep(Stored(response, self._turns + self._answer_turns(), self.input_items))
        return response

    def first(self) -> bytes:
        response = self._response("in_progress")
        return self._send("response.created", response=response) + self._send("response.in_progress", response=response)

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        if not self._telemetry.is_wanted:
            return super().events(chunks)
        events = b""
        for chunk in split_tokens(chunks):
            for progress in self._telemetry.progress(chunk):
                events += self._send("response.in_progress", response=self._response("in_progress"), **progress)
            self._timings = self._telemetry.timings(chunk)
            events += super().events([chunk])
        return events

    def block_start(self, block: AnswerBlock) -> bytes:
        place = {"output_index": block.number}
        events = self._send(
            "response.output_item.added", **place, item=self._item(block, "in_progress", has_part=False)
        )
        if block.kind is BlockKind.CALL:
            return events
        return events + self._send("response.content_part.added", **self._place(block), part=self._part(block))

    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        if block.name in self._customs:
            piece = self._inputs[block.number].read(piece)
            return self._send(_CUSTOM_INPUT + ".delta", **self._place(block), delta=piece) if piece else b""
        extras = self._logprobs(block, is_new=True) | self._timings
        return self._send(_EVENT[block.kind] + ".delta", **self._place(block), **extras, delta=piece)

    def block_end(self, block: AnswerBlock) -> bytes:
        done, place = _EVENT[block.kind] + ".done", self._place(block)
        if block.name in self._customs:
            input = _input(block, self._status(block))
            is_told = not input or self._inputs[block.number].is_inside
            events = b"" if is_told else self._send(_CUSTOM_INPUT + ".delta", **place, delta=input)
            events += self._send(_CUSTOM_INPUT + ".done", **place, input=input)
        elif block.kind is BlockKind.CALL:
            events = self._send(done, **place, **self._called(block), arguments=block.text)
        else:
            events = self._send(done, **place, **self._logprobs(block), text=block.text)
            events += self._send("response.content_part.done", **place, part=self._part(block))
        return events + self._send(
            "response.output_item.done", output_index=block.number, item=self._item(block, self._status(block))
        )

    def answer_end(self) -> bytes:
        response = self.complete_answer()
        self.final_status = response.status
        return self._send("response." + response.status, response=response, timings=self.tally.timings())

    def failure(self, error: CorosrvError) -> bytes:
        status: ResponseStatus = "cancelled" if self.is_cancelled else "failed"
        response = self._response(status)
        self.final_status = status
        if not self.is_cancelled:
            response.error = ResponseError(getattr(error, "code", None) or "server_error", str(error))
        if self.is_background and self._keep is not None:  # its client learns of it by asking
            self._keep(Stored(response, self._turns, self.input_items))
        return self._send(f"response.{status}", response=response)

    def _send(self, type: str, **members: Any) -> bytes:
        event = ResponseEvent(type, self._sequence_number, **members)
        self._sequence_number += 1
        return named_event(type, event)

    @property
    def _is_cut(self) -> bool:
        return self._cut_reason is not None

    @property
    def _cut_reason(self) -> CutReason | None:
        """Why the answer ended before the model ended it, None where it did not."""
        return None if self.blocks.end is None else _CUT_REASONS.get(self.blocks.end.reason)

    def _status(self, block: AnswerBlock) -> ItemStatus:
        """Returns the status of a block that does not grow any more, whatever the reason."""
        is_cut = self._is_cut and block is self.blocks.row[-1]
        return "incomplete" if is_cut or block is self.blocks.open else "completed"

    def _place(self, block: AnswerBlock) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id(block), "output_index": block.number}
        return place if block.kind is BlockKind.CALL else {**place, "content_index": 0}

    def _id(self, block: AnswerBlock) -> str:
        kind = "ctc" if block.name in self._customs else _ID[block.kind]
        return item_id(kind, self._key, block.number)

    def _item(self, block: AnswerBlock, status: ItemStatus, has_part: bool = True) -> ResponseItem:
        id, parts = self._id(block), [self._part(block)] if has_part else []
        if block.kind is BlockKind.TEXT:
            return ResponseItem(id, "message", status, role="assistant", content=parts)
        if block.kind is BlockKind.REASONING:
            return ResponseItem(id, "reasoning", status, summary=[], content=parts)
        if block.name in self._customs:
            return ResponseItem(
                id, "custom_tool_call", status, call_id=block.id, name=block.name, input=_input(block, status)
            )
        return ResponseItem(id, "function_call", status, call_id=block.id, **self._called(block), arguments=block.text)

    def _called(self, block: AnswerBlock) -> dict[str, Any]:
        if block.name not in self._origins:
            return {"name": block.name}
        namespace, name = self._origins[block.name]
        return {"name": name, "namespace": namespace}

    def _response(self, status: ResponseStatus) -> ResponseObject:
        is_over = status in ("completed", "incomplete")
        return ResponseObject(
            id=self.id,
            object="response",
            created_at=self._created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            error=None,
            incomplete_details=None if self._cut_reason is None else IncompleteDetails(self._cut_reason),
            output=[self._item(block, self._status(block)) for block in self.blocks.row],
            usage=self._usage() if is_over else None,
            **self._echo,
        )

    def _usage(self) -> ResponseUsage:
        tally = self.tally
        return ResponseUsage(
            tally.prompt_tokens,
            InputTokensDetails(tally.cached_tokens, 0, tally.image_tokens),  # nobody is billed for what is kept
            tally.completion_tokens,
            OutputTokensDetails(self.reasoning_tokens),
            tally.prompt_tokens + tally.completion_tokens,
        )

    def _answer_turns(self) -> tuple[Turn, ...]:
        """Makes turns of the answer, for responses that go on from it."""
        turns = TurnList()
        for block in self.blocks.row:
            if block.kind is BlockKind.REASONING:
                turns.think(block.text)
            elif block.kind is BlockKind.TEXT:
                turns.answer(block.text)
            else:
                turns.call(block.id, block.name, arguments(block.text, "arguments"))
        return turns.all

    def _part(self, block: AnswerBlock) -> OutputPart:
        if block.kind is BlockKind.REASONING:
            return OutputPart("reasoning_text", block.text)
        logprobs = self._all_logprobs(block) if block.tokens else NO_LOGPROBS
        return OutputPart("output_text", block.text, annotations=[], logprobs=logprobs)

    def _logprobs(self, block: AnswerBlock, is_new: bool = False) -> dict[str, Any]:
        """Makes the member of an event for the tokens of a text; `is_new`: only those that have come since."""
        if block.kind is not BlockKind.TEXT:
            return {}
        if not block.tokens:
            return {"logprobs": NO_LOGPROBS}
        return {"logprobs": _json_list([self._describe(block)]) if is_new else self._all_logprobs(block)}

    def _all_logprobs(self, block: AnswerBlock) -> msgspec.Raw:
        self._describe(block)
        return _json_list(self._described[block.number])

    def _describe(self, block: AnswerBlock) -> bytes:
        """Describes the tokens that have come since the last time. Lets others run, who may look at the answer."""
        begin, self._n_described[block.number] = self._n_described[block.number], len(block.tokens)
        if begin == len(block.tokens):
            return b""
        described = bytes(cast(msgspec.Raw, native.describe_all(block.tokens[begin:], post_sampling=False)))[1:-1]
        self._described[block.number].append(described)
        return described


class CompactionAnswer(ResponseAnswer):
    """A compacted conversation: its input is the whole of it, and then the request for a summary, which it is."""

    def complete_answer(self) -> CompactedResponse:  # type: ignore[override]
        parts = (part for item in self._response("completed").output for part in item.content or ())
        summary = "".join(part.text for part in parts if part.type == "output_text")
        told = [item for item in self.input_items[:-1] if item["type"] == "message" and item["role"] == "user"]
        compaction = {"id": item_id("cmp", self._key, 0), "type": "compaction", "encrypted_content": seal(summary)}
        return CompactedResponse(self.id, "response.compaction", self._created, [*told, compaction], self._usage())


# A string's text in JSON, up to its end or to an escape that is not whole yet; escaped halves of a character go
# together.
_TEXT = re.compile(
    r'(?:[^"\\]+|\\["\\/bfnrt]|\\u[dD][89abAB][\da-fA-F]{2}\\u[\da-fA-F]{4}|\\u(?![dD][89abAB])[\da-fA-F]{4})*'
)
_BEFORE_TEXT = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class _InputReader:
    """Reads what a custom tool is called with out of a call's arguments, piece by piece."""

    def __init__(self) -> None:
        self._rest = ""  # what cannot be told yet
        self.is_inside = False

    def read(self, piece: str) -> str:
        self._rest += piece
        begin = None if self.is_inside else _BEFORE_TEXT.match(self._rest)
        if begin is None and not self.is_inside:
            return ""
        text = _TEXT.match(self._rest, begin.end() if begin else 0)
        assert text is not None
        self.is_inside, self._rest = True, self._rest[text.end() :]
        return str(json.loads(f'"{text[0]}"', strict=False)).encode(errors="ignore").decode()


def _input(block: AnswerBlock, status: ItemStatus) -> str:
    """Returns the input of a call; its arguments as they are where a model that no grammar holds wrote others."""
    reader = _InputReader()
    text = reader.read(block.text)
    return block.text if status == "completed" and not reader.is_inside else text


def _json_list(pieces: Iterable[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
