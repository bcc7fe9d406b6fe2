"""Makes GBNF for arguments that are a row of keys and values, or elements in elements; see ArgumentRow and ElementTree.

Their texts end where a given word begins, so `texts_without` makes rules for texts in which a word does not occur.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.dialects.chat.tool_schema import (
    LIMITS_OF_STRINGS,
    MOST_FREE,
    SchemaSource,
    alternatives,
    check_whole,
    is_string,
    literals,
    row,
)
from corosrv.formats.callformats.description import ArgumentRow, ElementTree, Spelling
from corosrv.formats.structured.gbnf import NOTHING, QUOTE, Rules, char_set, either, literal, sequence


def texts_without(word: str, prefix: str) -> Rules:
    """Makes rules, named after `prefix`, for texts in which a word does not occur."""
    bodies = {f"{prefix}-{n}": _after(word, n, prefix) for n in range(len(word))}
    return Rules(f"{prefix}-text", {f"{prefix}-text": f"({prefix}-0)* {literal(word[0])}*", **bodies})


def _after(word: str, n: int, prefix: str) -> str:
    """Returns what may follow the first n letters of a word, until none of the last letters could begin it."""
    steps = {letter: _longest_begun(word, word[:n] + letter) for letter in dict.fromkeys(word)}
    goes_on = [(letter, m) for letter, m in steps.items() if 0 < m < len(word)]
    other = char_set([(ord(letter), ord(letter)) for letter, m in steps.items() if m > 0], is_negated=True)
    return either((other, *(f"{literal(letter)} {prefix}-{m}" for letter, m in goes_on)))


def _longest_begun(word: str, text: str) -> int:
    """Returns how many letters of the word stand at the end of a text."""
    return next((n for n in range(len(text), 0, -1) if text.endswith(word[:n])), 0)


def unquoted(rules: Rules, name: str) -> Rules | None:
    """Returns the rules of JSON strings without their quotes; None where there is more than strings.

    What JSON escapes stays escaped. `name`: of the new rule.
    """
    bodies, start = rules.bodies, rules.start
    while bodies[start] in bodies:
        start = bodies[start]
    body = bodies[start]
    if body == f"{QUOTE} {QUOTE}":
        return Rules(name, {name: NOTHING})
    if not body.startswith(f"{QUOTE} ") or not body.endswith(f" {QUOTE}") or " | " in body:
        return None
    return Rules(name, {**bodies, name: body[len(QUOTE) + 1 : -len(QUOTE) - 1]})


_MOST_DEPTH = 8  # of elements in each other


class ArgumentRules(ABC):
    """The grammar's rules for the arguments of one tool in a notation whose objects and lists may be in each other."""

    def __init__(self, source: SchemaSource, stop: str) -> None:
        """`stop`: the word that no string has in it, and by which its end is known."""
        self._source = source
        self._stop = stop
        self._bodies: dict[str, str] = {}
        self._n_named = 0

    def rules(self) -> Rules:
        """Raises InvalidSchema for a schema that cannot be used."""
        check_whole(self._source)
        named, required = self._source.properties()
        start = f"{self._source.prefix}-arguments"
        self._bodies[start] = self._arguments(named, required)
        return Rules(start, self._bodies)

    @abstractmethod
    def _arguments(self, properties: list[tuple[str, Any]], required: Collection[str]) -> str:
        """Returns all arguments."""

    def _rule(self, name: str, body: str) -> str:
        self._n_named += 1
        name = f"{self._source.prefix}-{self._n_named}{name}"
        self._bodies[name] = body
        return name

    def _add(self, rules: Rules) -> str:
        self._bodies.update(rules.bodies)
        return rules.start

    def _fragment(self, schema: Any) -> str:
        """Returns a value as JSON."""
        self._n_named += 1
        return self._add(self._source.fragment(schema, f"n{self._n_named}"))

    def _check_depth(self, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise self._source.refusal("is nested too deep for the notation of this model")

    def _counts(self, schema: dict[str, Any]) -> tuple[int, int]:
        """Returns how many items a list has, at least and at most."""
        least = int(schema.get("minItems", 0))
        return least, int(schema.get("maxItems", max(least, self._source.limits.items)))

    def _text(self, schema: Any) -> str:
        """Returns a string without what stands around it."""
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return either(map(literal, values))
        if LIMITS_OF_STRINGS & schema.keys():
            self._n_named += 1
            name = f"n{self._n_named}"
            content = unquoted(self._source.fragment(schema, name), f"{self._source.prefix}{name}-raw")
            if content is not None:
                return self._add(content)
        return self._add(texts_without(self._stop, "raw"))


class ElementRules(ArgumentRules):
    """Makes the rules of arguments that are written as elements.

    Of what a schema asks beyond the members of objects and lists, only the counts of items are kept.
    """

    def __init__(self, tree: ElementTree, source: SchemaSource) -> None:
        super().__init__(source, tree.mark)
        self._tree = tree

    def _arguments(self, properties: list[tuple[str, Any]], required: Collection[str]) -> str:
        return self._members(properties, required, 0) or NOTHING

    def _members(self, properties: list[tuple[str, Any]], required: Collection[str], depth: int) -> str:
        pairs = [(self._element(name, schema, depth + 1), name in required) for name, schema in properties]
        return row(pairs, "", "", "", self._rule)

    def _element(self, name: str, schema: Any, depth: int) -> str:
        mark = self._tree.mark
        return sequence(literal(f"{mark}<{name}>"), self._value(schema, depth), literal(f"{mark}</{name}>"))

    def _value(self, schema: Any, depth: int) -> str:
        self._check_depth(depth)
        parts = alternatives(schema, self._source.schema)
        strings = [part for part in parts if is_string(part)]
        return self._text(strings[0]) if strings else either(self._lone(part, depth) for part in parts)

    def _lone(self, schema: Any, depth: int) -> str:
        """Returns a value that is no string."""
        if isinstance(schema, dict) and schema.get("type") == "object" and "properties" in schema:
            named, required = list(schema["properties"].items()), schema.get("required") or ()
            return self._rule("object", self._members(named, required, depth) or NOTHING)
        if isinstance(schema, dict) and schema.get("type") == "array":
            return self._list(schema, depth)
        return self._fragment(schema)

    def _list(self, schema: dict[str, Any], depth: int) -> str:
        item = self._rule("item", self._element(self._tree.item, schema.get("items", True), depth + 1))
        least, most = self._counts(schema)
        return f"{item}{{{least},{most}}}" if most else NOTHING


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
