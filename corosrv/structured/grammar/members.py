"""Objects and arrays as GBNF: members in the order of the schema, separators, and how many there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.structured.grammar.gbnf import sequence
from corosrv.structured.grammar.rule_book import Namer

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
class Rest:
    """What may come from some member on: a list of at least one, if there can be any, or nothing."""

    filled: str | None
    may_be_empty: bool

    @property
    def is_possible(self) -> bool:
        return self.filled is not None or self.may_be_empty

    def behind(self, item: str) -> str:
        """The item, then the rest of the list."""
        if self.filled is None:
            return item
        more = f"{COMMA} {self.filled}"
        return f"{item} ({more})?" if self.may_be_empty else f"{item} {more}"

    def within(self, opening: str, closing: str) -> str:
        """The list between brackets, with space around it."""
        if self.filled is None:
            return f'"{opening}" json-space "{closing}"'
        filled = f"{self.filled} json-space"
        return f'"{opening}" json-space {f"({filled})?" if self.may_be_empty else filled} "{closing}"'


def pair(key: str, value: str) -> str:
    """A member of an object; `key` with its colon."""
    return sequence(key, BLANK, value)


def _repeated(item: str, least: int, most: int, book: Namer) -> Rest:
    """A list of one kind of item."""
    if most < max(least, 1):
        return Rest(None, least <= 0)
    more = book.rule(f"{COMMA} {item}") if most > 2 else f"({COMMA} {item})"
    return Rest(sequence(item, book.many(more, max(least, 1) - 1, most - 1)), least <= 0)


def members(known: Sequence[Member], extra: str | None, n_extra: int, least: int, most: int, book: Namer) -> Rest:
    """The inside of an object: known members in their order, those not required perhaps left out, then up to `n_extra`
    others; from `least` to `most` in all.

    Others may have equal keys and then count as one, so no more than one of them is ever counted on.
    """
    n_required = sum(member.is_required for member in known)
    missing, room = max(0, least - n_required), most - n_required
    n_optional = len(known) - n_required
    is_tight = room < n_optional + (n_extra if extra else 0)
    cap = max(missing, room) if is_tight else missing  # so many optional ones are told apart
    cap = min(cap, n_optional + 1)

    def others(n: int) -> Rest:
        if not extra or missing - n > 1:
            return Rest(None, n >= missing)
        return _repeated(extra, missing - n, min(n_extra, room - n), book)

    if room < 0:
        return Rest(None, False)
    rests = [others(n) for n in range(cap + 1)]
    for member in reversed(known):
        rests = [_member(member, rests, n, room if is_tight else cap + 1, book) for n in range(cap + 1)]
    return rests[0]


def _member(member: Member, rests: Sequence[Rest], n: int, room: int, book: Namer) -> Rest:
    """The rest that begins at a member, with `n` optional ones before it; `rests` are those behind it, by their n."""
    without = rests[n]
    if not member.is_required and without.filled is not None:
        # A rule, because it is used twice: behind this member, and where it is left out.
        without = Rest(book.rule(without.filled), without.may_be_empty)
    after = without if member.is_required or len(rests) == 1 else rests[min(n + 1, len(rests) - 1)]
    has_room = member.is_required or n < room
    filled = [after.behind(member.pair)] if after.is_possible and has_room else []
    if member.is_required:
        return Rest(filled[0] if filled else None, False)
    if without.filled is not None:
        filled.append(without.filled)
    return Rest(book.rule(" | ".join(filled)) if filled else None, without.may_be_empty)


def elements(first: Sequence[str], item: str | None, least: int, most: int, book: Namer) -> Rest:
    """The inside of an array: one item each of `first`, then any number of `item`; from `least` to `most` in all."""
    if least > most:
        return Rest(None, False)
    n_first = min(len(first), most)
    rest = _repeated(item, least - n_first, most - n_first, book) if item else Rest(None, least <= n_first)
    for index in reversed(range(n_first)):
        if not rest.is_possible:
            return Rest(None, index >= least)
        if rest.may_be_empty and rest.filled is not None:
            rest = Rest(book.rule(rest.filled), True)  # keeps brackets from nesting
        rest = Rest(rest.behind(first[index]), index >= least)
    return rest
