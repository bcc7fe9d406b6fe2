"""The state that the parts of one conversion share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.effort import Effort
from corosrv.formats.structured.grammar.beginnings import Beginnings
from corosrv.formats.structured.grammar.members import SPACE_RULE
from corosrv.formats.structured.grammar.rule_book import RuleBook
from corosrv.formats.structured.limits import SchemaLimits
from corosrv.formats.structured.patterns.parse import parse
from corosrv.formats.structured.patterns.tree import Node
from corosrv.formats.structured.schema.anything import AnyValue

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
