"""Makes GBNF for arguments that are written as elements in elements; see ElementTree."""

from __future__ import annotations

from typing import Any

from corosrv.dialects.chat.raw_text import texts_without, unquoted
from corosrv.dialects.chat.tool_schema import LIMITS_OF_STRINGS, SchemaSource, alternatives, check_whole, is_string, row
from corosrv.formats.callformats.description import ElementTree
from corosrv.formats.structured.grammar.gbnf import NOTHING, Rules, either, literal, sequence

_MOST_DEPTH = 8  # of elements in each other


class ElementRules:
    """The grammar's rules for the arguments of one tool, written as elements.

    Of what a schema asks beyond the members of objects and lists, only the counts of items are kept.
    """

    def __init__(self, tree: ElementTree, source: SchemaSource) -> None:
        self._tree = tree
        self._source = source
        self._bodies: dict[str, str] = {}
        self._n_named = 0

    def rules(self) -> Rules:
        """Raises InvalidSchema for a schema that cannot be used."""
        check_whole(self._source)
        named, required = self._source.properties()
        start = f"{self._source.prefix}-arguments"
        self._bodies[start] = self._members(named, required, 0) or NOTHING
        return Rules(start, self._bodies)

    def _rule(self, name: str, body: str) -> str:
        self._n_named += 1
        name = f"{self._source.prefix}-{self._n_named}{name}"
        self._bodies[name] = body
        return name

    def _members(self, properties: list[tuple[str, Any]], required: Any, depth: int) -> str:
        pairs = [(self._element(name, schema, depth + 1), name in required) for name, schema in properties]
        return row(pairs, "", "", "", self._rule)

    def _element(self, name: str, schema: Any, depth: int) -> str:
        mark = self._tree.mark
        return sequence(literal(f"{mark}<{name}>"), self._value(schema, depth), literal(f"{mark}</{name}>"))

    def _value(self, schema: Any, depth: int) -> str:
        if depth > _MOST_DEPTH:
            raise self._source.refusal("is nested too deep for the notation of this model")
        parts = alternatives(schema, self._source.schema)
        strings = [part for part in parts if is_string(part)]
        return self._string(strings[0]) if strings else either(self._lone(part, depth) for part in parts)

    def _lone(self, schema: Any, depth: int) -> str:
        """Returns a value that is no string."""
        if isinstance(schema, dict) and schema.get("type") == "object" and "properties" in schema:
            named, required = list(schema["properties"].items()), schema.get("required") or ()
            return self._rule("object", self._members(named, required, depth) or NOTHING)
        if isinstance(schema, dict) and schema.get("type") == "array":
            return self._list(schema, depth)
        self._n_named += 1
        rules = self._source.fragment(schema, f"n{self._n_named}")
        self._bodies.update(rules.bodies)
        return rules.start

    def _list(self, schema: dict[str, Any], depth: int) -> str:
        item = self._rule("item", self._element(self._tree.item, schema.get("items", True), depth + 1))
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, self._source.limits.items)))
        return f"{item}{{{least},{most}}}" if most else NOTHING

    def _string(self, schema: Any) -> str:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return either(map(literal, values))
        if LIMITS_OF_STRINGS & schema.keys():
            self._n_named += 1
            name = f"n{self._n_named}"
            content = unquoted(self._source.fragment(schema, name), f"{self._source.prefix}{name}-raw")
            if content is not None:
                self._bodies.update(content.bodies)
                return content.start
        content = texts_without(self._tree.mark, "raw")
        self._bodies.update(content.bodies)
        return content.start
