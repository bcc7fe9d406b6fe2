"""An answer as a row of blocks, for dialects that show it so: what its parts are pieces of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from corosrv.chat.parts import CallArguments, CallBegin, End, Part, Text


class Kind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """One text, one chain of thoughts, or one call with its arguments."""

    number: int  # within the answer
    kind: Kind
    id: str = ""  # of a call
    name: str = ""  # of the tool that is called
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What it says so far; of a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grew:
    block: Block
    piece: str


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Step = Opened | Grew | Closed


class Blocks:
    """The blocks of one choice in their order; while it goes on, the last of them is open."""

    def __init__(self) -> None:
        self.row: list[Block] = []
        self.end: End | None = None
        self.open: Block | None = None

    def add(self, part: Part) -> Iterator[Step]:
        """What follows from a part. An answer that says nothing at all is one empty text."""
        if isinstance(part, End):
            if not self.row:
                yield self._begin(Kind.TEXT)
            self.end = part
            yield from self._close()
        elif isinstance(part, CallBegin):
            yield from self._close()
            yield self._begin(Kind.CALL, part.id, part.name)
        elif isinstance(part, CallArguments):
            yield from self._grow(Kind.CALL, part.piece)
        else:
            yield from self._grow(Kind.TEXT if isinstance(part, Text) else Kind.REASONING, part.text)

    def _begin(self, kind: Kind, id: str = "", name: str = "") -> Opened:
        self.open = Block(len(self.row), kind, id, name)
        self.row.append(self.open)
        return Opened(self.open)

    def _grow(self, kind: Kind, piece: str) -> Iterator[Step]:
        if not piece:
            return
        if self.open is None or self.open.kind is not kind:
            yield from self._close()
            yield self._begin(kind)
        assert self.open is not None
        self.open.pieces.append(piece)
        yield Grew(self.open, piece)

    def _close(self) -> Iterator[Step]:
        closed, self.open = self.open, None
        if closed is not None:
            yield Closed(closed)
