"""Arranges an answer as a row of blocks, for dialects that show it as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part


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
    """The blocks of one choice in their order; the last one is open until the choice ends."""

    def __init__(self) -> None:
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
        else:
            yield from self._grow(BlockKind.TEXT if isinstance(part, AnswerText) else BlockKind.REASONING, part.text)

    def _begin(self, kind: BlockKind, id: str = "", name: str = "") -> BlockStart:
        self.open = AnswerBlock(len(self.row), kind, id, name)
        self.row.append(self.open)
        return BlockStart(self.open)

    def _grow(self, kind: BlockKind, piece: str) -> Iterator[Step]:
        if not piece:
            return
        if self.open is None or self.open.kind is not kind:
            yield from self._close()
            yield self._begin(kind)
        assert self.open is not None
        self.open.pieces.append(piece)
        yield BlockDelta(self.open, piece)

    def _close(self) -> Iterator[Step]:
        closed, self.open = self.open, None
        if closed is not None:
            yield BlockEnd(closed)
