"""Answers of dialects that show a row of blocks (texts, thoughts, calls), as one value at the end or event by event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk, TokenInfo
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation.job_usage import Tally


class BlockKind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class AnswerBlock:
    """One text, one chain of thoughts, or one call with its arguments."""

    number: int  # within the answer
    kind: BlockKind
    id: str = ""  # of a call
    name: str = ""  # of the tool that is called
    pieces: list[str] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)  # of a text, where the answer shows them

    @property
    def text(self) -> str:
        """Returns the text so far; for a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockStart:
    block: AnswerBlock


@dataclass(frozen=True, slots=True)
class BlockDelta:
    block: AnswerBlock
    piece: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    block: AnswerBlock


Step = BlockStart | BlockDelta | BlockEnd


class Blocks:
    """The blocks of one choice in their order; the last one is open until the choice ends.

    With `keeps_tokens` texts have their tokens; a token that adds no text is an empty piece then.
    """

    def __init__(self) -> None:
        self.keeps_tokens = False
        self.row: list[AnswerBlock] = []
        self.end: End | None = None
        self.open: AnswerBlock | None = None

    def add(self, part: Part) -> Iterator[Step]:
        """Adds a part and yields the steps that follow. An answer without any part has one empty text block."""
        if isinstance(part, End):
            if not self.row:
                yield self._begin(BlockKind.TEXT)
            self.end = part
            yield from self._close()
        elif isinstance(part, CallBegin):
            yield from self._close()
            yield self._begin(BlockKind.CALL, part.id, part.name)
        elif isinstance(part, CallArguments):
            yield from self._grow(BlockKind.CALL, part.piece)
        elif isinstance(part, AnswerText):
            yield from self._grow(BlockKind.TEXT, part.text, part.tokens if self.keeps_tokens else ())
        else:
            yield from self._grow(BlockKind.REASONING, part.text)

    def _begin(self, kind: BlockKind, id: str = "", name: str = "") -> BlockStart:
        self.open = AnswerBlock(len(self.row), kind, id, name)
        self.row.append(self.open)
        return BlockStart(self.open)

    def _grow(self, kind: BlockKind, piece: str, tokens: tuple[TokenInfo, ...] = ()) -> Iterator[Step]:
        # Tokens without a text go with the one that is open, or are all that the answer has.
        if not piece and not (tokens and (not self.row or (self.open is not None and self.open.kind is kind))):
            return
        if self.open is None or self.open.kind is not kind:
            yield from self._close()
            yield self._begin(kind)
        assert self.open is not None
        self.open.pieces.append(piece)
        if tokens:
            self.open.tokens += tokens
        yield BlockDelta(self.open, piece)

    def _close(self) -> Iterator[Step]:
        closed, self.open = self.open, None
        if closed is not None:
            yield BlockEnd(closed)


class BlockAnswer(ABC):
    """One answer to one prompt, being put together; see corosrv.dialects.generation.exchange.Answer.

    A dialect makes its events and its complete answer from `blocks` and `tally`.
    """

    def __init__(self, parser: Parser) -> None:
        self.blocks = Blocks()
        self.tally = Tally()
        self._parser = parser

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def complete(self, chunks: list[Chunk]) -> Any:
        for _ in self._steps(chunks):
            pass
        return self.complete_answer()

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        events = list(map(self._event, self._steps(chunks)))
        if self.blocks.end is not None:
            events.append(self.answer_end())
        return b"".join(events)

    def _steps(self, chunks: Sequence[Chunk]) -> Iterator[Step]:
        for chunk in chunks:
            self.tally.add(chunk)
        parts: Iterator[Part] = self._parser.parts(chunks)
        for part in parts:
            yield from self.blocks.add(part)

    def _event(self, step: Step) -> bytes:
        if isinstance(step, BlockStart):
            return self.block_start(step.block)
        if isinstance(step, BlockDelta):
            return self.block_delta(step.block, step.piece)
        assert isinstance(step, BlockEnd)
        return self.block_end(step.block)

    @abstractmethod
    def complete_answer(self) -> Any:
        """Makes the answer that is not streamed; its blocks have ended."""

    @abstractmethod
    def first(self) -> bytes:
        """Makes the events before the first block."""

    @abstractmethod
    def block_start(self, block: AnswerBlock) -> bytes:
        """Makes the events for a new block, which is empty."""

    @abstractmethod
    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        """Makes the events for more text of a block."""

    @abstractmethod
    def block_end(self, block: AnswerBlock) -> bytes:
        """Makes the events for the end of a block."""

    @abstractmethod
    def answer_end(self) -> bytes:
        """Makes the events after the last block."""

    @abstractmethod
    def failure(self, error: CorosrvError) -> bytes:
        """Makes the event that ends the stream in an error."""
