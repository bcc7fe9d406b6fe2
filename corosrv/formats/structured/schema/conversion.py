"""The state that the parts of one conversion share: the rules, the limits, and the patterns that were parsed.

`AnyValue` writes the rules for any JSON value, nested no deeper than a limit: what a schema without keywords allows.
Strings become GBNF between quotes here: lengths, patterns and formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.gbnf import (
    ANY_CHAR,
    ESCAPE_RULE,
    HEX_RULE,
    NOTHING,
    QUOTE,
    either,
    literal,
    repeated,
    sequence,
)
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.pattern import parse
from corosrv.formats.structured.pattern_tree import Alternatives, Character, Node, Repeat, Sequence
from corosrv.formats.structured.rule_book import SPACE_RULE, RuleBook, elements, members, pair
from corosrv.formats.structured.watched import Beginnings

_YEAR = "[1-9][0-9]{3}"
_LEAP_YEAR = (
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26]|1[26])00)"  # 1600 is one, 1700 is none
)
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
_TIME = f"{_CLOCK}(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = f"{_LABEL}(?:\\.{_LABEL}){{0,3}}"

# Formats that are kept to, each as a pattern: not every text of the format, but none that is not of it. Any other
# format is a remark, as JSON Schema has it.
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": "^P(?:[1-9][0-9]{0,3}D(?:T[1-9][0-9]{0,3}[HMS])?|[1-9][0-9]{0,3}[YMW]|T[1-9][0-9]{0,3}[HMS])$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "email": f"^[A-Za-z0-9_+-]{{1,24}}(?:\\.[A-Za-z0-9_+-]{{1,24}}){{0,2}}@{_LABEL}(?:\\.{_LABEL}){{1,3}}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_OCTET}(?:\\.{_OCTET}){{3}}$",
    "ipv6": "^[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}$",
    "uri": f"^https?://{_HOST}(?:/[A-Za-z0-9._~-]{{0,40}}){{0,8}}(?:\\?[A-Za-z0-9._~=&-]{{1,80}})?$",
}


def of_length(least: int, most: int, book: RuleBook) -> str:
    """Returns the rule for any string of `least` to `most` characters, which all grammars share."""
    content = _any_chars(least, most, book)
    return book.shared(f"string-{least}-{most}", sequence(QUOTE, content, QUOTE))


def chars(most: int, book: RuleBook) -> str:
    """Returns the rule for up to `most` characters inside a string, which all grammars share."""
    return book.shared(f"chars-0-{most}", _any_chars(0, most, book))


def _any_chars(least: int, most: int, book: RuleBook) -> str:
    book.shared("hex", HEX_RULE)
    book.shared("escape", ESCAPE_RULE)
    return book.common.many(ANY_CHAR, least, most)


def of_pattern(node: Node, repeats: int, book: RuleBook) -> str:
    """Returns a rule for strings of the pattern. Optional repetitions end after `repeats` times."""
    return book.rule(sequence(QUOTE, _content(node, repeats, book), QUOTE))


def _content(node: Node, repeats: int, book: RuleBook) -> str:
    if isinstance(node, Character):
        raw, escaped = node.chars.in_json()
        return either([*raw, *([book.rule(" | ".join(escaped))] if len(escaped) > 1 else escaped)])
    if isinstance(node, Sequence):
        return sequence(*_joined(node.items, repeats, book))
    if isinstance(node, Alternatives):
        # In brackets even when all say the same: it may be repeated.
        return f"({' | '.join(dict.fromkeys(_content(branch, repeats, book) or NOTHING for branch in node.branches))})"
    assert isinstance(node, Repeat)
    if node.item.most(repeats) == 0:
        return ""
    content = _content(node.item, repeats, book)
    item = content if isinstance(node.item, (Character, Alternatives)) else f"({content})"
    return book.many(item, node.fewest, node.end(repeats))


def _joined(items: Iterable[Node], repeats: int, book: RuleBook) -> Iterator[str]:
    """Yields GBNF for each item; joins plain characters in a row into one literal."""
    for are_plain, group in groupby(items, lambda item: isinstance(item, Character) and item.chars.is_plain):
        if are_plain:
            yield literal("".join(item.chars.single for item in group if isinstance(item, Character)))
        else:
            yield from (_content(item, repeats, book) for item in group)


BOOLEAN = '("true" | "false")'
NULL = '"null"'


class AnyValue:
    """Writes each of these shared rules into a book when it is first needed."""

    def __init__(self, book: RuleBook, limits: SchemaLimits) -> None:
        self._book = book
        self._limits = limits
        self._values: dict[int, str] = {}  # rules by their depth

    def string(self, least: int = 0, most: int | None = None) -> str:
        most = self._limits.string_chars if most is None else min(most, self._limits.string_chars)
        return of_length(least, max(least, most), self._book)

    def key(self) -> str:
        return self.string(1, self._limits.key_chars)

    def integer(self) -> str:
        return self._book.shared("integer", f'"0" | "-"? [1-9] {repeated("[0-9]", 0, self._limits.digits - 1)}')

    def number(self) -> str:
        digits = self._limits.digits
        integer_part = f'("0" | [1-9] {repeated("[0-9]", 0, digits - 1)})'
        return self._book.shared("number", f'"-"? {integer_part} ("." [0-9]{{1,{digits}}})? ([eE] [-+]? [0-9]{{1,2}})?')

    def value(self, depth: int | None = None) -> str:
        """Returns the rule for any value that nests objects and arrays at most `depth` deep."""
        depth = self._limits.value_depth if depth is None else depth
        if depth not in self._values:
            kinds = [self.string(), self.number(), BOOLEAN, NULL]
            if depth > 0:
                kinds = [self.object(depth), self.array(depth), *kinds]
            self._values[depth] = self._book.shared(f"value-{depth}", " | ".join(kinds))
        return self._values[depth]

    def object(self, depth: int | None = None) -> str:
        depth = self._limits.value_depth if depth is None else depth
        self._book.shared("space", SPACE_RULE)
        member = self._book.shared(f"member-{depth}", pair(f'{self.key()} ":"', self.value(depth - 1)))
        content = members(
            (), member, self._limits.extra_properties, 0, self._limits.extra_properties, self._book.common
        )
        return self._book.shared(f"object-{depth}", content.enclose("{", "}"))

    def array(self, depth: int | None = None) -> str:
        depth = self._limits.value_depth if depth is None else depth
        self._book.shared("space", SPACE_RULE)
        content = elements((), self.value(depth - 1), 0, self._limits.items, self._book.common)
        return self._book.shared(f"array-{depth}", content.enclose("[", "]"))


# GBNF for the values of a schema at a place: one item. Raises Impossible.
Value = Callable[[Any, str], str]


class Conversion:
    """One document that is being converted: its rules, its limits, and the patterns that were parsed."""

    def __init__(self, document: Any, param: str, prefix: str, limits: SchemaLimits, effort: Effort) -> None:
        self.document = document
        self.param = param
        self.limits = limits
        self.book = RuleBook(prefix, param, limits)
        self.book.shared("space", SPACE_RULE)
        self.any = AnyValue(self.book, limits)
        self.beginnings = Beginnings()
        self._effort = effort
        self._patterns: dict[str, Node] = {}

    def check(self) -> None:
        """Raises InvalidSchema when the conversion has taken too much processor time."""
        self._effort.check(self.param)

    def pattern_tree(self, pattern: str) -> Node:
        """Parses a pattern, each once. Raises PatternError."""
        self.check()
        if pattern not in self._patterns:
            self._patterns[pattern] = parse(pattern, self.limits)
        return self._patterns[pattern]

    def refusal(self, place: str, problem: str) -> InvalidSchema:
        return InvalidSchema(place, problem, self.param)
