"""Writes rules for any JSON value, nested no deeper than a limit: what a schema without keywords allows."""

from __future__ import annotations

from corosrv.formats.structured.grammar.gbnf import repeated
from corosrv.formats.structured.grammar.members import SPACE_RULE, elements, members, pair
from corosrv.formats.structured.grammar.rule_book import RuleBook
from corosrv.formats.structured.limits import SchemaLimits
from corosrv.formats.structured.schema import strings

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
