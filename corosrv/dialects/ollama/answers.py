"""Makes Ollama's answers: one object, or a line of JSON for each piece, with times in nanoseconds at the end.

Defines the types of the answers, which the API document describes, too.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import TokenInfo
from corosrv.dialects.chat.answer import AnswerBlock, BlockAnswer, BlockKind
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation import native
from corosrv.dialects.generation.native import TokenLikelihood

# No time is told by a blank, which stands before the next line: no client minds, and some would mind an empty line.
NOTHING = b" "
_NANOSECONDS = 1_000_000_000

DoneReason = Literal["stop", "length", "load", "unload", "abort"]
DONE_REASON: dict[str, DoneReason] = {"stop": "stop", "length": "length", "tool_calls": "stop", "cancelled": "abort"}


class OllamaError(msgspec.Struct):
    """The body of every error; also the line that ends a stream which failed."""

    error: str


class OllamaFunctionCall(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class OllamaToolCall(msgspec.Struct):
    """A call that the model wants made."""

    id: str
    function: OllamaFunctionCall


class OllamaMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, kw_only=True):
    """A piece of an answer, or all of it. The last one has `done`, its reason, counts, and times in nanoseconds."""

    model: str
    created_at: str
    done: bool = False
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLikelihood] | UnsetType = UNSET  # of the text in this line


class OllamaChatLine(OllamaLine, kw_only=True):
    """A piece of a chat's answer, or all of it."""

    message: OllamaMessage


class OllamaTextLine(OllamaLine, kw_only=True):
    """A piece of a text, or all of it."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct):
    """The vectors of texts, each of the length 1."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    """The vector of one text, as the model gives it."""

    embedding: list[float]


class PullLine(msgspec.Struct):
    """A line of a pull: what is done, and of a download the bytes that are there, and all of them."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def error_body(error: CorosrvError) -> OllamaError:
    return OllamaError(str(error))


def encode_line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def timestamp(seconds: float | None = None) -> str:
    """Returns a time of the Unix clock, or that of now, as Go writes it."""
    moment = datetime.now(timezone.utc) if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times of one request: `began`, of time.monotonic(), and the seconds that its model took to load."""

    began: float = field(default_factory=time.monotonic)
    load_s: float = 0.0

    @property
    def total(self) -> int:
        """Returns the nanoseconds so far."""
        return nanoseconds(time.monotonic() - self.began)

    @property
    def load(self) -> int:
        return nanoseconds(self.load_s)


def chat_line(
    text: str = "", thinking: str = "", calls: list[OllamaToolCall] | None = None, **more: Any
) -> OllamaChatLine:
    """Makes a line of a chat; `more`: its other members."""
    return OllamaChatLine(message=OllamaMessage("assistant", text, thinking or UNSET, calls or UNSET), **more)


def text_line(
    text: str = "", thinking: str = "", calls: list[OllamaToolCall] | None = None, **more: Any
) -> OllamaTextLine:
    """Makes a line of a text, which calls no tools; `more`: its other members."""
    return OllamaTextLine(response=text, thinking=thinking or UNSET, **more)


class OllamaAnswer(BlockAnswer):
    """One answer, as an object or line by line. Calls of tools come whole."""

    def __init__(self, model: str, parser: Parser, stopwatch: Stopwatch, logprobs: bool = False) -> None:
        """`model`: as the client calls it. `logprobs`: texts have their tokens, and how likely these were."""
        super().__init__(parser)
        self.blocks.keeps_tokens = logprobs
        self._n_told = 0  # tokens of the open text
        self._model = model
        self._stopwatch = stopwatch

    @abstractmethod
    def piece(self, *texts: Any, **more: Any) -> Any:
        """Makes a line, as `chat_line` or `text_line` does."""

    def complete_answer(self) -> Any:
        text, thoughts = (self._joined(kind) for kind in (BlockKind.TEXT, BlockKind.REASONING))
        calls = [_call(block, number) for number, block in enumerate(self._blocks(BlockKind.CALL))]
        tokens = [token for block in self._blocks(BlockKind.TEXT) for token in block.tokens]
        return self.piece(text, thoughts, calls, **self._frame, **self._logprobs(tokens), **self._end())

    def first(self) -> bytes:
        return NOTHING

    def block_start(self, block: AnswerBlock) -> bytes:
        self._n_told = 0
        return b""

    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        if block.kind is BlockKind.CALL:
            return b""
        if block.kind is BlockKind.REASONING:
            return encode_line(self.piece("", piece, **self._frame))
        begin, self._n_told = self._n_told, len(block.tokens)
        return encode_line(self.piece(piece, **self._frame, **self._logprobs(block.tokens[begin:])))

    def block_end(self, block: AnswerBlock) -> bytes:
        if block.kind is not BlockKind.CALL:
            return b""
        number = sum(other.kind is BlockKind.CALL for other in self.blocks.row) - 1
        return encode_line(self.piece(calls=[_call(block, number)], **self._frame))

    def answer_end(self) -> bytes:
        return encode_line(self.piece(**self._frame, **self._end()))

    def failure(self, error: CorosrvError) -> bytes:
        return encode_line(error_body(error))

    @property
    def _frame(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": timestamp()}

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
        """Describes tokens where they are asked for. Lets others run."""
        return {"logprobs": native.describe_all(tokens, post_sampling=False)} if self.blocks.keeps_tokens else {}

    def _end(self) -> dict[str, Any]:
        """Returns the members of the last line."""
        end, tally = self.blocks.end, self.tally
        assert end is not None
        return {
            "done": True,
            "done_reason": DONE_REASON[end.reason],
            "total_duration": self._stopwatch.total,
            "load_duration": self._stopwatch.load,
            "prompt_eval_count": tally.prompt_tokens,
            "prompt_eval_duration": nanoseconds(tally.prompt_ms / 1000),
            "eval_count": tally.completion_tokens,
            "eval_duration": nanoseconds(tally.decode_ms / 1000),
        }

    def _blocks(self, kind: BlockKind) -> list[AnswerBlock]:
        return [block for block in self.blocks.row if block.kind is kind]

    def _joined(self, kind: BlockKind) -> str:
        return "".join(block.text for block in self._blocks(kind))


class OllamaChatAnswer(OllamaAnswer):
    """The answer to a conversation."""

    def piece(self, *texts: Any, **more: Any) -> OllamaChatLine:
        return chat_line(*texts, **more)


class OllamaTextAnswer(OllamaAnswer):
    """The answer to a prompt, which calls no tools."""

    def piece(self, *texts: Any, **more: Any) -> OllamaTextLine:
        return text_line(*texts, **more)


def loading_answer(model: str, reason: DoneReason, *, is_chat: bool) -> OllamaLine:
    """Makes the answer to a request without a prompt, which loads its model or unloads it."""
    members: dict[str, Any] = {"model": model, "created_at": timestamp(), "done": True, "done_reason": reason}
    if is_chat:
        return OllamaChatLine(message=OllamaMessage("assistant", ""), **members)
    return OllamaTextLine(response="", **members)


def _call(block: AnswerBlock, number: int) -> OllamaToolCall:
    return OllamaToolCall(block.id, OllamaFunctionCall(block.name, call_arguments(block.text), number))


def call_arguments(text: str) -> dict[str, Any]:
    """Decodes a call's arguments. Returns an empty object for a call that was cut off: half a JSON text is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
