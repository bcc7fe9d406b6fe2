"""Control markers in what a client wrote: set between two marks while a template runs, and cut out as text after it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from corosrv.base.errors import Refused

# 32 code points that Unicode keeps for internal use: they mark places in a conversation while it is rendered.
_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Piece(NamedTuple):
    """Part of a rendered prompt; in `is_text` parts control markers are ordinary text."""

    text: str
    is_text: bool


class Marks(NamedTuple):
    """Three code points that a conversation itself does not use."""

    opening: str  # before a control marker
    closing: str  # behind it
    end: str  # where the answer goes on

    @classmethod
    def free_in(cls, texts: Iterable[str]) -> Marks:
        """Returns marks that none of the texts uses. Raises Refused when they leave no three."""
        return cls(*free_marks(texts, 3))

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Cuts at the marks; those that a template has torn apart are dropped."""
        if self.opening not in rendered and self.closing not in rendered:
            if rendered:
                yield Piece(rendered, is_text=False)
            return
        at = 0
        for marked in re.finditer(f"{self.opening}([^{self.opening}{self.closing}]*){self.closing}", rendered):
            yield from self._piece(rendered[at : marked.start()])
            yield Piece(marked.group(1), is_text=True)
            at = marked.end()
        yield from self._piece(rendered[at:])

    def _piece(self, text: str) -> Iterator[Piece]:
        if clean := text.replace(self.opening, "").replace(self.closing, ""):
            yield Piece(clean, is_text=False)


def free_marks(texts: Iterable[str], count: int) -> list[str]:
    """Returns code points that none of the texts uses. Raises Refused when they leave too few."""
    used = {mark for text in texts if not text.isascii() for mark in _NONCHARACTER.findall(text)}
    free = [mark for mark in _NONCHARACTERS if mark not in used] if used else _NONCHARACTERS
    if len(free) < count:
        raise Refused("the messages use up the code points U+FDD0 to U+FDEF", "messages")
    return free[:count]


class Guard:
    """Knows the texts of a model's control tokens."""

    def __init__(self, control_markers: Iterable[str]) -> None:
        markers = sorted((marker for marker in control_markers if marker), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None

    def finds_markers(self, texts: Iterable[str]) -> bool:
        """Tells whether there is a control marker in one of the texts."""
        return self._markers is not None and any(map(self._markers.search, texts))

    def guarded(self, value: Any, marks: Marks) -> Any:
        """A copy of `value` with each control marker set between marks, in strings at any depth, names included."""
        if isinstance(value, str):
            return self._guarded_text(value, marks)
        if isinstance(value, dict):
            return {self.guarded(name, marks): self.guarded(member, marks) for name, member in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.guarded(item, marks) for item in value]
        return value

    def _guarded_text(self, text: str, marks: Marks) -> str:
        if self._markers is None:
            return text
        return self._markers.sub(lambda match: marks.opening + match.group() + marks.closing, text)


def strings(value: Any) -> list[str]:
    """Returns all strings in a JSON value, names included."""
    texts = []
    pending = [value]
    for part in pending:  # which grows meanwhile
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            pending += part
            pending += part.values()
        elif isinstance(part, (list, tuple)):
            pending += part
    return texts
