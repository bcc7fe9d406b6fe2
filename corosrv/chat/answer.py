"""The way out of dialects that show an answer as a row of blocks: whole at the end, or event by event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from corosrv.chat.blocks import AnswerBlock, Blocks, Closed, Grew, Opened, Step
from corosrv.chat.parser import Parser
from corosrv.chat.parts import Part
from corosrv.errors import CorosrvError
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk


class BlockAnswer(ABC):
    """One answer to one prompt, being put together; see corosrv.generation.exchange.Answer.

    A dialect says what its events and its whole answer look like. What they tell of is in `blocks` and `tally`.
    """

    def __init__(self, parser: Parser) -> None:
        self.blocks = Blocks()
        self.tally = Tally()
        self._parser = parser

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def whole(self, chunks: list[Chunk]) -> Any:
        for _ in self._steps(chunks):
            pass
        return self.finished()

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        sent = list(map(self._event, self._steps(chunks)))
        if self.blocks.end is not None:
            sent.append(self.ended())
        return b"".join(sent)

    def _steps(self, chunks: Sequence[Chunk]) -> Iterator[Step]:
        for chunk in chunks:
            self.tally.add(chunk)
        parts: Iterator[Part] = self._parser.parts(chunks)
        for part in parts:
            yield from self.blocks.add(part)

    def _event(self, step: Step) -> bytes:
        if isinstance(step, Opened):
            return self.opened(step.block)
        if isinstance(step, Grew):
            return self.grew(step.block, step.piece)
        assert isinstance(step, Closed)
        return self.closed(step.block)

    @abstractmethod
    def finished(self) -> Any:
        """The whole answer; its blocks have their end."""

    @abstractmethod
    def first(self) -> bytes:
        """The events before the first block."""

    @abstractmethod
    def opened(self, block: AnswerBlock) -> bytes:
        """A block begins; it is empty."""

    @abstractmethod
    def grew(self, block: AnswerBlock, piece: str) -> bytes:
        """A block has this more."""

    @abstractmethod
    def closed(self, block: AnswerBlock) -> bytes:
        """A block is whole."""

    @abstractmethod
    def ended(self) -> bytes:
        """The events after the last block."""

    @abstractmethod
    def failure(self, error: CorosrvError) -> bytes:
        """The event that ends the stream in an error."""
