"""Writes objects and arrays as GBNF: members in the order of the schema, separators, and how many there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.formats.structured.grammar.gbnf import sequence
from corosrv.formats.structured.grammar.rule_book import Namer

# One blank, or a line end and some indentation: what models write, and never so much that they go on with it for ever.
SPACE_RULE = '(" " | "\\n" " "{0,16})?'
COMMA = '"," json-space'
BLANK = '" "?'


@dataclass(frozen=True, slots=True)
class Member:
    """A property from its key to the end of its value."""

    pair: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a list, from some member on. `filled`: GBNF for at least one member, None if none can come."""

    filled: str | None
    may_be_empty: bool

    @property
    def is_possible(self) -> bool:
        return self.filled is not None or self.may_be_empty

    def prepend(self, item: str) -> str:
        """Returns GBNF for the item, then this end of the list."""
        if self.filled is None:
            return item
        more = f"{COMMA} {self.filled}"
        return f"{item} ({more})?" if self.may_be_empty else f"{item} {more}"

    def enclose(self, opening: str, closing: str) -> str:
        """Returns GBNF for the list between brackets, with space around it."""
        if self.filled is None:
            return f'"{opening}" json-space "{closing}"'
        filled = f"{self.filled} json-space"
        return f'"{opening}" json-space {f"({filled})?" if self.may_be_empty else filled} "{closing}"'


def pair(key: str, value: str) -> str:
    """Writes a member of an object; `key` includes the colon."""
    return sequence(key, BLANK, value)


def _repeated(item: str, least: int, most: int, book: Namer) -> Tail:
    """Writes a list of one kind of item."""
    if most < max(least, 1):
        return Tail(None, least <= 0)
    more = book.rule(f"{COMMA} {item}") if most > 2 else f"({COMMA} {item})"
    return Tail(sequence(item, book.many(more, max(least, 1) - 1, most - 1)), least <= 0)


def members(
    named_members: Sequence[Member], extra: str | None, n_extra: int, least: int, most: int, book: Namer
) -> Tail:
    """Writes the members of an object: the named ones in their order, then up to `n_extra` others.

    Named members that are not required may be left out. There are `least` to `most` members in all. The others may have
    equal keys, which count as one, so no more than one of them is ever counted on.
    """
    n_required = sum(member.is_required for member in named_members)
    n_missing, room = max(0, least - n_required), most - n_required
    n_optional = len(named_members) - n_required
    is_tight = room < n_optional + (n_extra if extra else 0)
    cap = max(n_missing, room) if is_tight else n_missing  # so many optional ones are told apart
    cap = min(cap, n_optional + 1)

    def extra_members(n: int) -> Tail:
        if not extra or n_missing - n > 1:
            return Tail(None, n >= n_missing)
        return _repeated(extra, n_missing - n, min(n_extra, room - n), book)

    if room < 0:
        return Tail(None, False)
    tails = [extra_members(n) for n in range(cap + 1)]
    for member in reversed(named_members):
        tails = [_member(member, tails, n, room if is_tight else cap + 1, book) for n in range(cap + 1)]
    return tails[0]


def _member(member: Member, tails: Sequence[Tail], n: int, room: int, book: Namer) -> Tail:
    """Writes the end of the list from a member on, with `n` optional ones before it; `tails`: those after it, by n."""
    if_omitted = tails[n]
    if not member.is_required and if_omitted.filled is not None:
        # A rule, because it is used twice: after this member, and where it is left out.
        if_omitted = Tail(book.rule(if_omitted.filled), if_omitted.may_be_empty)
    if_present = if_omitted if member.is_required or len(tails) == 1 else tails[min(n + 1, len(tails) - 1)]
    has_room = member.is_required or n < room
    filled = [if_present.prepend(member.pair)] if if_present.is_possible and has_room else []
    if member.is_required:
        return Tail(filled[0] if filled else None, False)
    if if_omitted.filled is not None:
        filled.append(if_omitted.filled)
    return Tail(book.rule(" | ".join(filled)) if filled else None, if_omitted.may_be_empty)


def elements(first: Sequence[str], item: str | None, least: int, most: int, book: Namer) -> Tail:
    """Writes the items of an array: each of `first`, then any number of `item`; `least` to `most` in all."""
    if least > most:
        return Tail(None, False)
    n_first = min(len(first), most)
    tail = _repeated(item, least - n_first, most - n_first, book) if item else Tail(None, least <= n_first)
    for index in reversed(range(n_first)):
        if not tail.is_possible:
            return Tail(None, index >= least)
        if tail.may_be_empty and tail.filled is not None:
            tail = Tail(book.rule(tail.filled), True)  # keeps brackets from nesting
        tail = Tail(tail.prepend(first[index]), index >= least)
    return tail
