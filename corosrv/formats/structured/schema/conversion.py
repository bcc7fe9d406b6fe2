"""The state that the parts of one conversion share: the rules, the limits, and the patterns that were parsed.

`AnyValue` writes the rules for any JSON value, nested no deeper than a limit: what a schema without keywords allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.gbnf import repeated
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.pattern import parse
from corosrv.formats.structured.pattern_tree import Node
from corosrv.formats.structured.rule_book import SPACE_RULE, RuleBook, elements, members, pair
from corosrv.formats.structured.schema import strings
from corosrv.formats.structured.watched import Beginnings

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
        return strings.of_length(least, max(least, most), self._book)

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
