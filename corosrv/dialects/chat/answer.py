"""Makes the answers of dialects that show a row of blocks: as one value at the end, or event by event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk
from corosrv.dialects.chat.blocks import AnswerBlock, BlockDelta, BlockEnd, Blocks, BlockStart, Step
from corosrv.dialects.chat.parser import Parser
from corosrv.dialects.chat.parts import Part
from corosrv.dialects.generation.tally import Tally


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
