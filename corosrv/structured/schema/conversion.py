"""The state that the parts of one conversion share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.errors import InvalidSchema
from corosrv.structured.effort import Effort
from corosrv.structured.grammar.beginnings import Beginnings
from corosrv.structured.grammar.members import SPACE_RULE
from corosrv.structured.grammar.rule_book import RuleBook
from corosrv.structured.limits import SchemaLimits
from corosrv.structured.patterns.parse import parse
from corosrv.structured.patterns.tree import Node
from corosrv.structured.schema.anything import AnyValue

# GBNF for the values of a schema at a place: one item. Raises Impossible.
Value = Callable[[Any, str], str]


class Conversion:
    """One document on its way to rules: where they are written, and how much of them there may be."""

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
        """Raises InvalidSchema when it was worked on for long enough."""
        self._effort.check(self.param)

    def parsed(self, pattern: str) -> Node:
        """Raises PatternError."""
        self.check()
        if pattern not in self._patterns:
            self._patterns[pattern] = parse(pattern, self.limits)
        return self._patterns[pattern]

    def refused(self, place: str, what: str) -> InvalidSchema:
        return InvalidSchema(place, what, self.param)
