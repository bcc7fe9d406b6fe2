"""Makes GBNF for arguments that are written as a row of keys and values."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.dialects.chat.raw_text import texts_without, unquoted
from corosrv.dialects.chat.tool_schema import (
    LIMITS_OF_STRINGS,
    MOST_FREE,
    SchemaSource,
    check_whole,
    is_string,
    literals,
    row,
)
from corosrv.formats.callformats.description import ArgumentRow, Spelling
from corosrv.formats.structured.grammar.gbnf import NOTHING, Rules, char_set, either, literal, sequence

_TYPES = ("string", "number", "boolean", "null", "object", "array")
_PYTHON_CONSTANTS = {"boolean": ("True", "False"), "null": ("None",)}


class MemberRules:
    """Makes the rules of one tool's arguments; see ArgumentRow."""

    def __init__(self, members: ArgumentRow, source: SchemaSource) -> None:
        self._members = members
        self._source = source
        self._bodies: dict[str, str] = {}

    def rules(self) -> Rules:
        """Raises InvalidSchema for a schema that cannot be used."""
        check_whole(self._source)
        named, required = self._source.properties()
        if self._members.sorts_keys:
            named.sort()
        pairs = [
            (self._pair(name, schema, f"p{number}"), name in required) for number, (name, schema) in enumerate(named)
        ]
        members = self._members
        if named or self._source.schema in ({}, {"type": "object", "properties": {}}):
            start = row(pairs, literals(members.opening), literals(members.between), literals(members.closing),
                        self._rule)  # fmt: skip
        else:
            start = self._free()
        self._bodies[f"{self._source.prefix}-arguments"] = start or NOTHING
        return Rules(f"{self._source.prefix}-arguments", self._bodies)

    def _rule(self, name: str, body: str) -> str:
        name = f"{self._source.prefix}-{name}"
        self._bodies[name] = body
        return name

    def _pair(self, key: str, schema: Any, name: str) -> str:
        """Returns an argument from its key to the end of its value."""
        members, kinds = self._members, self._kinds(schema)
        values = []
        for kind in kinds:
            part = schema if len(kinds) == 1 else _of_type(schema, kind)
            try:
                value = self._value(part, kind, f"{name}{kind[:2]}")
            except InvalidSchema:
                if len(kinds) == 1:
                    raise
                continue  # the schema allows no value of this type
            values.append(sequence(literals(f"{key}{members.key_end}{members.type_word(kind)}{members.value_start}"),
                                   value, literals(members.value_end)))  # fmt: skip
        return either(values)

    def _kinds(self, schema: Any) -> tuple[str, ...]:
        """Returns the types that have to be told apart."""
        if is_string(schema):
            return ("string",)
        if not self._members.type_words:
            return ("",)
        kind = schema.get("type") if isinstance(schema, dict) else None
        kinds = [kind] if isinstance(kind, str) else kind or list(_TYPES)
        return tuple(dict.fromkeys("number" if kind == "integer" else kind for kind in kinds))

    def _value(self, schema: Any, kind: str, name: str) -> str:
        members = self._members
        if kind == "string":
            return self._string(schema, name)
        if members.constants is Spelling.PYTHON and isinstance(schema, dict) and not {"enum", "const"} & schema.keys():
            words = _PYTHON_CONSTANTS.get(str(schema.get("type")))
            if words:
                return either(map(literal, words))
        return self._add(self._source.fragment(schema, name))

    def _string(self, schema: Any, name: str) -> str:
        quote = literals(self._members.quote)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return sequence(quote, either(literal(value) for value in values), quote)
        if LIMITS_OF_STRINGS & schema.keys():
            content = unquoted(self._source.fragment(schema, name), f"{self._source.prefix}{name}-raw")
            if content is not None:
                return sequence(quote, self._add(content), quote)
        if self._members.quotes:
            return either(map(self._quoted, self._members.quotes))
        return self._add(texts_without(self._members.value_end.strip(), "raw"))

    def _quoted(self, quote: str) -> str:
        """Returns any string between these quotes."""
        letter = char_set([(ord(stop), ord(stop)) for stop in (quote[0], "\\", "\0")], is_negated=True)
        content = self._rule(f"quoted{ord(quote[0])}", f'({letter} | "\\\\" ["\'\\\\nrt])*')
        return sequence(literal(quote), content, literal(quote))

    def _add(self, rules: Rules) -> str:
        self._bodies.update(rules.bodies)
        return rules.start

    def _free(self) -> str:
        """Returns any arguments, for a tool that names none."""
        members = self._members
        value = self._string({}, "free") if members.type_words else self._add(self._source.fragment(True, "free"))
        start = f"{members.key_end}{members.type_word('string')}{members.value_start}"
        pair = self._rule("any", sequence("[A-Za-z_] [A-Za-z0-9_]{0,63}", literals(start), value,
                                          literals(members.value_end)))  # fmt: skip
        more = f"({sequence(literals(members.between), pair)}){{0,{MOST_FREE}}}"
        row_of_pairs = sequence(literals(members.opening), pair, more, literals(members.closing))
        return f"({row_of_pairs})?"


def _of_type(schema: Any, kind: str) -> Any:
    return {"allOf": [schema, {"type": kind}]}
