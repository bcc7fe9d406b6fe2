"""Converts objects: the properties that a schema names, those of patterns, and all others."""

from __future__ import annotations

from typing import Any

from corosrv.formats.structured.grammar.chars import Chars
from corosrv.formats.structured.grammar.gbnf import json_literal, sequence
from corosrv.formats.structured.grammar.members import Member, members, pair
from corosrv.formats.structured.patterns.tree import Node, PatternError, first_chars, fit_length, matches
from corosrv.formats.structured.schema import names, strings
from corosrv.formats.structured.schema.conversion import Conversion, Value
from corosrv.formats.structured.schema.merge import Impossible, Schema
from corosrv.formats.structured.schema.refs import step


class Properties:
    """Writes the objects of a schema. `value` writes the values of their properties."""

    def __init__(self, conversion: Conversion, value: Value) -> None:
        self._refusal = conversion.refusal
        self._check = conversion.check
        self._pattern_tree = conversion.pattern_tree
        self._limits = conversion.limits
        self._beginnings = conversion.beginnings
        self._book = conversion.book
        self._any = conversion.any
        self._value = value

    def object(self, schema: Schema, place: str) -> str:
        """Returns GBNF for the objects of a schema. Raises Impossible and InvalidSchema."""
        with self._beginnings.rule_scope(None):
            named_members = self._members(schema, place)
            extra = self._extra(schema, place)
        least = int(schema.get("minProperties", 0))
        n_extra = self._limits.extra_properties if extra else 0
        most = int(schema.get("maxProperties", len(named_members) + n_extra))
        if extra and least > len(named_members) + 1:
            raise self._refusal(
                step(place, "minProperties"), "'minProperties' is only supported up to one more than there are names"
            )
        tail = members(named_members, extra, n_extra, least, most, self._book)
        if not tail.is_possible:
            raise Impossible("it has more or fewer properties than it may")
        return self._book.rule(tail.enclose("{", "}"))

    def _members(self, schema: Schema, place: str) -> list[Member]:
        """Returns the properties that the schema names, in its order."""
        properties: dict[str, Any] = dict(schema.get("properties", {}))
        required = schema.get("required", [])
        for name in required:
            if name not in properties:
                is_other = not self._by_pattern(schema, name, place)
                properties[name] = schema.get("additionalProperties", True) if is_other else True
        named_members = []
        for name, inner in properties.items():
            at = step(place, "properties", name)
            inner = self._with_patterns(schema, name, inner, place)
            try:
                named_members.append(Member(pair(json_literal(name, ":"), self._value(inner, at)), name in required))
            except Impossible as impossible:
                if name in required:
                    raise Impossible(f"the required property '{name}' has no value: {impossible}") from None
            except UnicodeEncodeError:
                raise self._refusal(at, "the name of a property must be Unicode text") from None
        return named_members

    def _patterns(self, schema: Schema, place: str) -> list[tuple[Node, Any, str]]:
        patterns = []
        for pattern, inner in schema.get("patternProperties", {}).items():
            at = step(place, "patternProperties", pattern)
            try:
                patterns.append((self._pattern_tree(pattern), inner, at))
            except PatternError as error:
                raise self._refusal(at, f"the pattern: {error}") from None
        return patterns

    def _by_pattern(self, schema: Schema, name: str, place: str) -> list[Any]:
        return [inner for node, inner, _ in self._patterns(schema, place) if matches(node, name, self._check)]

    def _with_patterns(self, schema: Schema, name: str, inner: Any, place: str) -> Any:
        more = self._by_pattern(schema, name, place) if "patternProperties" in schema else []
        return {"allOf": [inner, *more]} if more else inner

    def _extra(self, schema: Schema, place: str) -> str | None:
        """Returns a rule for a property that the schema does not name: one of a pattern, or any, where allowed.

        A schema that names properties and is silent about others gets no others.
        """
        if "patternProperties" in schema:
            return self._of_patterns(schema, place)
        known_names = [*schema.get("properties", {}), *schema.get("required", [])]
        inner = schema.get("additionalProperties", not known_names)
        try:
            value = self._value(inner, step(place, "additionalProperties"))
        except Impossible:
            return None
        key = names.other_than(known_names, self._limits.key_chars, self._book) if known_names else self._any.key()
        return self._book.rule(pair(sequence(key, '":"'), value))

    def _of_patterns(self, schema: Schema, place: str) -> str | None:
        """Returns a rule for properties of patterns. Leaves out patterns that match a named property.

        Such a key could come twice, with different values.
        """
        patterns = self._patterns(schema, place)
        known_names = {*schema.get("properties", {}), *schema.get("required", [])}
        alternatives = []
        first_sets: list[Chars] = []
        for node, inner, at in patterns:
            first = first_chars(node)
            if len(patterns) > 1 and (first is None or any((first & other).ranges for other in first_sets)):
                raise self._refusal(at, "several patterns are only supported where no two can begin alike")
            if first is not None:
                first_sets.append(first)
            if any(matches(node, name, self._check) for name in known_names):
                continue
            try:
                value = self._value(inner, at)
            except Impossible:
                continue
            least = 1 if node.least == 0 else node.least
            key = strings.of_pattern(*fit_length(node, least, max(least, self._limits.key_chars)), self._book)
            alternatives.append(self._book.rule(pair(sequence(key, '":"'), value)))
        if not alternatives:
            return None
        return alternatives[0] if len(alternatives) == 1 else self._book.rule(" | ".join(alternatives))
