"""Collects the rules of a grammar while it is made: named, counted, and each written once.

`endless` finds the rules that match no text of finite length. `members` and `elements` write objects and arrays:
members in the order of the schema, their separators, and how many there may be.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.gbnf import SHARED_PREFIX, Rules, repeated, sequence
from corosrv.formats.structured.limits import SchemaLimits

_TOKEN = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z][A-Za-z0-9-]*)'
    r"|(?P<optional>[?*]|\{0(?:,\d*)?\})|(?P<repeated>\+|\{\d+(?:,\d*)?\})|(?P<sign>[()|])"
)


def endless(bodies: Mapping[str, str]) -> set[str]:
    """Returns the names of the rules without a finite text: each of their alternatives uses such a rule again."""
    tokens = {name: list(_TOKEN.finditer(body)) for name, body in bodies.items()}
    users: dict[str, set[str]] = {}
    for name, rule_tokens in tokens.items():
        for token in rule_tokens:
            if token.lastgroup == "name":
                users.setdefault(token.group(), set()).add(name)
    ending: set[str] = set()
    todo = list(tokens)
    while todo:
        name = todo.pop()
        if name not in ending and _ends(iter(tokens[name]), ending):
            ending.add(name)
            todo += users.get(name, ())
    return set(tokens) - ending


def _ends(tokens: Iterator[re.Match[str]], ending: set[str]) -> bool:
    """Returns whether the tokens up to the next closing bracket, or the end, have a text of `ending` rules alone."""
    some_alternative = False
    items: list[bool] = []
    for token in tokens:
        sign = token.group()
        if token.lastgroup == "optional":
            items[-1] = True
        elif sign == "(":
            items.append(_ends(tokens, ending))
        elif sign == ")":
            break
        elif sign == "|":
            some_alternative, items = some_alternative or all(items), []
        elif token.lastgroup != "repeated":
            items.append(token.lastgroup == "text" or sign in ending)
    return some_alternative or all(items)


CHUNK = 32
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class Namer(ABC):
    """Gives rules their names."""

    @abstractmethod
    def rule(self, body: str) -> str:
        """Returns the name of a rule with this body."""

    def many(self, item: str, least: int, most: int) -> str:
        """Writes an item `least` to `most` times. Large counts use rules for chunks, which keep the grammar small."""
        if most <= 2 * CHUNK:
            return repeated(item, least, most)
        chunk = self.rule(f"{item}{{{CHUNK}}}")
        sure = sequence(repeated(chunk, least // CHUNK, least // CHUNK), repeated(item, least % CHUNK, least % CHUNK))
        n_optional = most - least
        if n_optional <= 2 * CHUNK:
            return sequence(sure, repeated(item, 0, n_optional))
        single = CHUNK - 1 + (n_optional - CHUNK + 1) % CHUNK
        return sequence(sure, repeated(chunk, 0, (n_optional - single) // CHUNK), repeated(item, 0, single))


class RuleBook(Namer):
    """Rules under one prefix. Raises InvalidSchema as soon as they exceed a limit."""

    def __init__(self, prefix: str, param: str, limits: SchemaLimits) -> None:
        self._prefix = prefix
        self._param = param
        self._limits = limits
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of each body
        self._n_named = 0
        self._n_bytes = 0

    def shared(self, name: str, body: str) -> str:
        """Defines a rule that is the same in every grammar. Returns its full name."""
        name = SHARED_PREFIX + name
        if name not in self._bodies:
            self.define(name, body)
        return name

    @property
    def common(self) -> CommonRules:
        """Returns a namer of rules that are the same in every grammar: named by their bodies."""
        return CommonRules(self)

    def rule(self, body: str) -> str:
        """Returns the name of a rule with this body."""
        if body not in self._names:
            name = self.reserve()
            self._names[body] = name
            self.define(name, body)
        return self._names[body]

    def reserve(self) -> str:
        """Returns a name whose rule is defined later: rules may need each other."""
        self._n_named += 1
        return f"{self._prefix}-{self._n_named}"

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body
        self._n_bytes += len(name) + len(body.encode()) + len(" ::= \n")
        if self._n_bytes > self._limits.grammar_bytes:
            self._refuse(f"{self._limits.grammar_bytes} bytes")
        if self._n_named > self._limits.rules:
            self._refuse(f"{self._limits.rules} rules")

    def _refuse(self, limit: str) -> None:
        problem = f"takes more than {limit} once it is compiled; ask for fewer or simpler values"
        raise InvalidSchema("#", problem, self._param)

    def endless(self) -> set[str]:
        """Returns the rules that have no finite text."""
        return endless(self._bodies)

    def rules_from(self, start: str) -> Rules:
        """Returns the rules that are reached from this one, itself first."""
        bodies: dict[str, str] = {}
        todo = [start]
        while todo:
            name = todo.pop()
            if name in bodies:
                continue
            bodies[name] = self._bodies[name]
            todo += reversed(_NAME.findall(_QUOTED.sub(" ", self._bodies[name])))
        return Rules(start, bodies)


class CommonRules(Namer):
    """A book's rules that do not carry its prefix."""

    def __init__(self, book: RuleBook) -> None:
        self._book = book

    def rule(self, body: str) -> str:
        # Named by what it says: two grammars have the same rule, or two rules.
        return self._book.shared(hashlib.sha256(body.encode()).hexdigest()[:12], body)


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
