"""Regular expressions of JSON schemas as trees: measured, kept within a length, and followed through a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from corosrv.formats.structured.gbnf import Chars

Check = Callable[[], None]


class PatternError(Exception):
    """The pattern is wrong or cannot be enforced; says why. A signal to schema, which raises InvalidSchema."""


@dataclass(frozen=True)
class Character:
    """One character out of a set."""

    chars: Chars

    size = 1
    least = 1

    def most(self, repeats: int) -> int:
        return 1


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]

    @cached_property
    def size(self) -> int:
        """Counts the character sets, with all repetitions written out."""
        return sum(item.size for item in self.items)

    @cached_property
    def least(self) -> int:
        """Counts the characters of the shortest text."""
        return sum(item.least for item in self.items)

    def most(self, repeats: int) -> int:
        """Returns the characters of the longest text, when optional repetitions end after `repeats` times."""
        return sum(item.most(repeats) for item in self.items)


@dataclass(frozen=True)
class Alternatives:
    branches: tuple[Node, ...]

    @cached_property
    def size(self) -> int:
        return sum(branch.size for branch in self.branches)

    @cached_property
    def least(self) -> int:
        return min(branch.least for branch in self.branches)

    def most(self, repeats: int) -> int:
        return max(branch.most(repeats) for branch in self.branches)


@dataclass(frozen=True)
class Repeat:
    item: Node
    fewest: int
    upmost: int | None  # None: no end

    @cached_property
    def size(self) -> int:
        return self.item.size * max(1, self.fewest if self.upmost is None else self.upmost)

    @cached_property
    def least(self) -> int:
        return self.item.least * self.fewest

    def end(self, repeats: int) -> int:
        return max(self.fewest, repeats if self.upmost is None else min(self.upmost, repeats))

    def most(self, repeats: int) -> int:
        return self.item.most(repeats) * self.end(repeats)


@dataclass(frozen=True)
class Edge:
    """An anchor: `^` or `$`. parse() returns trees without any."""

    is_start: bool

    size = 0
    least = 0

    def most(self, repeats: int) -> int:
        return 0


Node = Character | Sequence | Alternatives | Repeat | Edge

NOTHING = Sequence(())


def repeat(item: Node, fewest: int, upmost: int | None) -> Node:
    """Repeats an item. Removes empty repetitions: a matcher would follow each of the many ways to repeat nothing."""
    if item.least == 0:
        fewest = 0
    if isinstance(item, Alternatives):
        branches = tuple(branch for branch in item.branches if branch != NOTHING)
        item = Alternatives(branches) if branches else NOTHING
    if isinstance(item, Repeat) and item.fewest <= 1:
        upmost = None if upmost is None or item.upmost is None else upmost * item.upmost
        item = item.item
    return item if item == NOTHING else Repeat(item, fewest, upmost)


def fit_length(node: Node, least: int, most: int) -> tuple[Node, int]:
    """Returns a node whose texts have `least` to `most` characters, and the most times its open repetitions may repeat.

    Does not keep all such texts of the pattern: where several parts may be long, all are kept equally short. Raises
    PatternError when that leaves none.
    """
    if node.least > most:
        raise PatternError(f"its shortest text has {node.least} characters, more than maxLength")
    if node.least < least:
        node = _lengthened(node, least)
    low, high = 0, most
    if node.most(0) > most:
        raise PatternError("together with maxLength it cannot be held by a grammar")
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if node.most(middle) <= most else (low, middle - 1)
    return node, low


def _lengthened(node: Node, least: int) -> Node:
    """Repeats a part of the node more often, so that its shortest text has `least` characters."""
    items = list(node.items) if isinstance(node, Sequence) else [node]
    for i in reversed(range(len(items))):
        item = items[i]
        if not isinstance(item, Repeat) or not item.item.least:
            continue
        n_missing = least - node.least
        fewest = item.fewest + -(-n_missing // item.item.least)
        if item.upmost is None or fewest <= item.upmost:
            items[i] = replace(item, fewest=fewest)
            return Sequence(tuple(items))
    raise PatternError("together with minLength it cannot be held by a grammar")


def matches(node: Node, text: str, check: Check) -> bool:
    """Returns whether the pattern matches the whole text. Calls `check` again and again, which may raise."""
    return len(text) in _ends(node, text, {0}, check)


def _ends(node: Node, text: str, starts: set[int], check: Check) -> set[int]:
    """Returns where in the text the node may end when it begins at one of these places."""
    if isinstance(node, Character):
        return {start + 1 for start in starts if start < len(text) and ord(text[start]) in node.chars}
    check()
    if isinstance(node, Alternatives):
        return set().union(*(_ends(branch, text, starts, check) for branch in node.branches))
    if isinstance(node, Sequence):
        for item in node.items:
            starts = _ends(item, text, starts, check) if starts else starts
        return starts
    assert isinstance(node, Repeat)
    for _ in range(node.fewest):
        starts = _ends(node.item, text, starts, check) if starts else starts
    ends, latest = set(starts), starts
    for _ in range(len(text) if node.upmost is None else node.upmost - node.fewest):
        check()
        latest = _ends(node.item, text, latest, check) - ends
        if not latest:
            break
        ends |= latest
    return ends


def first_chars(node: Node) -> Chars | None:
    """Returns the characters that the node's texts begin with; None when a text may be empty."""
    if isinstance(node, Character):
        return node.chars
    if isinstance(node, Repeat):
        return first_chars(node.item) if node.fewest else None
    chars = Chars(())
    if isinstance(node, Alternatives):
        for branch in node.branches:
            if (first := first_chars(branch)) is None:
                return None
            chars |= first
        return chars
    assert isinstance(node, Sequence)
    for item in node.items:
        if (first := first_chars(item)) is not None:
            return chars | first
        if not isinstance(item, Repeat) or (first := first_chars(item.item)) is None:
            return None
        chars |= first
    return None
