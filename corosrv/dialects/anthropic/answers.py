"""Types of Anthropic's answers and errors, which the API document describes, and how an answer's blocks become them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from corosrv.base.errors import CorosrvError, ErrorKind
from corosrv.contracts.jobs import Chunk, ModelCard
from corosrv.contracts.jobs.job import new_id
from corosrv.dialects.chat.answer import AnswerBlock, BlockAnswer, BlockKind
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation.call import named_event
from corosrv.dialects.openai.batches.lines import LineError, LineResult, is_good

if TYPE_CHECKING:  # most servers need none of it
    from corosrv.dialects.openai.batches.folder import StoredBatch

_MOST_WORDS = 1000  # bytes of another server's error that is told

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


class MessageBatchCounts(msgspec.Struct):
    """Counts of a batch's requests: all of them are `processing` until it has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct):
    """A batch of messages. Its results are there when it has ended."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class MessageBatchList(msgspec.Struct):
    """A page of batches, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(msgspec.Struct):
    """The answer to a batch's deletion."""

    id: str
    type: Literal["message_batch_deleted"]


class MessageResult(msgspec.Struct, omit_defaults=True):
    """The result of one request: the `message` where it has succeeded, the `error` where it has not."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: msgspec.Raw | None = None
    error: msgspec.Raw | MessagesError | None = None


class MessageBatchLine(msgspec.Struct):
    """A line of a batch's results."""

    custom_id: str
    result: MessageResult


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


def batch_answer(stored: StoredBatch, results_url: str) -> MessageBatch:
    """Describes a batch of messages as clients see it."""
    batch = stored.batch
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return MessageBatch(
        id=batch.id,
        type="message_batch",
        processing_status="ended" if ended_at else "canceling" if batch.status == "cancelling" else "in_progress",
        request_counts=_batch_counts(stored),
        created_at=_time_text(batch.created_at),
        expires_at=_time_text(batch.expires_at),
        ended_at=_time_text(ended_at) if ended_at else None,
        cancel_initiated_at=_time_text(batch.cancelling_at) if batch.cancelling_at else None,
        archived_at=None,
        results_url=results_url if ended_at else None,
    )


def _batch_counts(stored: StoredBatch) -> MessageBatchCounts:
    counts = stored.batch.request_counts
    if not stored.batch.is_ended:
        return MessageBatchCounts(counts.total, 0, 0, 0, 0)
    canceled, expired = (stored.n_not_run * (stored.batch.status == status) for status in ("cancelled", "expired"))
    errored = counts.total - counts.completed - canceled - expired
    return MessageBatchCounts(0, counts.completed, errored, canceled, expired)


def _time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


_line_result = msgspec.json.Decoder(LineResult)
_error_answer = msgspec.json.Decoder(MessagesError)
_NOT_RUN: dict[str, Literal["canceled", "expired"]] = {"batch_cancelled": "canceled", "batch_expired": "expired"}


def batch_line(text: bytes) -> bytes:
    """Makes a line of results of one as the folder keeps it."""
    line = _line_result.decode(text)
    return msgspec.json.encode(MessageBatchLine(line.custom_id, _message_result(line))) + b"\n"


def _message_result(line: LineResult) -> MessageResult:
    response = line.response
    if response is None:
        error = line.error or LineError("", "the request has no answer")
        if (kind := _NOT_RUN.get(error.code)) is not None:
            return MessageResult(kind)
        return MessageResult("errored", error=_api_error(error.message, ""))
    if is_good(response.status_code):
        return MessageResult("succeeded", message=response.body)
    try:
        _error_answer.decode(response.body)
    except msgspec.MsgspecError:  # of an upstream that has another form of errors
        words = f"status {response.status_code}: {bytes(response.body)[:_MOST_WORDS].decode(errors='replace')}"
        return MessageResult("errored", error=_api_error(words, response.request_id))
    return MessageResult("errored", error=response.body)


def _api_error(message: str, request_id: str) -> MessagesError:
    return MessagesError("error", MessagesErrorMembers("api_error", message), request_id)


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
