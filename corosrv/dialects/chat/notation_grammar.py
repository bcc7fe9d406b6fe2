"""Makes GBNF for arguments that are JSON with other quotes around strings, and none around keys."""

from __future__ import annotations

from typing import Any

from corosrv.dialects.chat.raw_text import texts_without, unquoted
from corosrv.dialects.chat.tool_schema import LIMITS_OF_STRINGS, MOST_FREE, SchemaSource, check_whole, is_string, row
from corosrv.formats.callformats.description import Notation
from corosrv.formats.callformats.writer import in_notation
from corosrv.formats.structured.grammar.gbnf import Rules, either, literal, sequence

_MOST_DEPTH = 8  # of objects and arrays in each other


class NotationRules:
    """Makes the rules of one tool's arguments; see Notation. What a schema asks beyond types is kept for strings,
    numbers and the counts of items alone."""

    def __init__(self, notation: Notation, source: SchemaSource) -> None:
        self._notation = notation
        self._source = source
        self._bodies: dict[str, str] = {}
        self._n_named = 0

    def rules(self) -> Rules:
        """Raises InvalidSchema for a schema that cannot be used."""
        check_whole(self._source)
        self._source.properties()
        start = f"{self._source.prefix}-arguments"
        self._bodies[start] = self._object(self._source.schema, 0)
        return Rules(start, self._bodies)

    def _rule(self, name: str, body: str) -> str:
        self._n_named += 1
        name = f"{self._source.prefix}-{self._n_named}{name}"
        self._bodies[name] = body
        return name

    def _value(self, schema: Any, depth: int) -> str:
        if depth > _MOST_DEPTH:
            raise self._source.refusal("is nested too deep for the notation of this model")
        if not isinstance(schema, dict) or not schema:
            return self._scalar()
        if "$ref" in schema:
            return self._value(self._resolved(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return either(self._value(branch, depth + 1) for branch in schema[word])
        if is_string(schema):
            return self._string(schema)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return either(literal(in_notation(value, self._notation)) for value in values)
        kind = schema.get("type")
        if isinstance(kind, list):
            return either(self._value({**schema, "type": one}, depth) for one in kind)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "null":
            return '("null" | "None")'
        if kind in ("number", "integer", "boolean"):
            self._n_named += 1
            rules = self._source.fragment(schema, f"n{self._n_named}")
            self._bodies.update(rules.bodies)
            return rules.start
        return self._scalar()

    def _resolved(self, ref: str) -> Any:
        target: Any = self._source.schema
        for name in str(ref).split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        return target

    def _object(self, schema: Any, depth: int) -> str:
        named = list((schema.get("properties") or {}).items()) if isinstance(schema, dict) else []
        required = schema.get("required") or () if isinstance(schema, dict) else ()
        if self._notation.sorts_keys:
            named.sort()
        if not named and isinstance(schema, dict) and schema.get("properties") is None and depth:
            pair = self._rule("any", sequence("[A-Za-z_] [A-Za-z0-9_]{0,63}", '":"', self._scalar()))
            return f'"{{" ({pair} ("," {pair}){{0,{MOST_FREE}}})? "}}"'
        pairs = [
            (sequence(literal(f"{name}:"), self._value(part, depth + 1)), name in required) for name, part in named
        ]
        content = row(pairs, "", '","', "", self._rule)
        return self._rule("object", sequence('"{"', content, '"}"'))

    def _array(self, schema: Any, depth: int) -> str:
        item = self._rule("item", self._value(schema.get("items", True), depth + 1))
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, self._source.limits.items)))
        if most == 0:
            return '"[" "]"'
        filled = f'{item} ("," {item}){{{max(least, 1) - 1},{most - 1}}}'
        return sequence('"["', filled if least else f"({filled})?", '"]"')

    def _string(self, schema: Any) -> str:
        quote = literal(self._notation.quote)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return sequence(quote, either(literal(value) for value in values), quote)
        if LIMITS_OF_STRINGS & schema.keys():
            self._n_named += 1
            name = f"n{self._n_named}"
            content = unquoted(self._source.fragment(schema, name), f"{self._source.prefix}{name}-raw")
            if content is not None:
                self._bodies.update(content.bodies)
                return sequence(quote, content.start, quote)
        content = texts_without(self._notation.quote, "raw")
        self._bodies.update(content.bodies)
        return sequence(quote, content.start, quote)

    def _scalar(self) -> str:
        """Returns any value that is no object and no array."""
        number = '"-"? [0-9]{1,15} ("." [0-9]{1,15})?'
        return f'({self._string({})} | {number} | "true" | "false" | "null")'
