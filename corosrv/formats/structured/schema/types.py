"""Converts a schema to GBNF, type by type.

`Properties` writes objects: the properties that a schema names, those of patterns, and all others, whose keys
`other_than` writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from corosrv.formats.structured.gbnf import NOTHING, QUOTE, RAW, Chars, json_literal, literal, sequence
from corosrv.formats.structured.pattern_tree import Node, PatternError, first_chars, fit_length, matches
from corosrv.formats.structured.rule_book import Member, RuleBook, elements, members, pair
from corosrv.formats.structured.schema import conversion, numbers
from corosrv.formats.structured.schema.check import step
from corosrv.formats.structured.schema.conversion import BOOLEAN, NULL, Conversion, Value
from corosrv.formats.structured.schema.merge import Impossible, Schema, types_of

_MOST_NODES = 300  # of the tree of names, each of which is a rule


def other_than(names: Collection[str], most: int, book: RuleBook) -> str:
    """Returns GBNF for a key of about `most` characters at most that is none of these names, however they are escaped.

    Along the beginnings of names no escapes are used, so that a text is a name only if it looks like one. Where the
    names have too many beginnings to follow, a key differs from all of them in its first character.
    """
    tree = _tree(names)
    if tree is None:
        tree = {name[0]: {"": True} for name in names if name}
    return sequence(QUOTE, _unlike(tree, conversion.chars(most, book), book), QUOTE)


def _tree(names: Iterable[str]) -> dict[str, object] | None:
    """Arranges the names by their characters; returns None where that would be too many rules."""
    tree: dict[str, object] = {}
    n_nodes = 0
    for name in names:
        node = tree
        for char in name:
            n_nodes += char not in node
            if n_nodes > _MOST_NODES:
                return None
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node[""] = True
    return tree


def _unlike(tree: dict[str, object], following: str, book: RuleBook) -> str:
    """Returns the rule for keys that leave the tree somewhere; `following`: the characters after that place."""
    # From the leaves up, because names may be long.
    order = [tree]
    for node in order:
        order += (inner for inner in node.values() if isinstance(inner, dict))
    rules: dict[int, str | None] = {}
    for node in reversed(order):
        chars = [char for char in node if char and ord(char) in RAW]
        other_chars = RAW & ~Chars.from_ranges((ord(char), ord(char)) for char in chars)
        alternatives = [sequence(*other_chars.in_json()[0], following)] if other_chars.ranges else []
        alternatives += [sequence(literal(char), inner) for char in chars if (inner := rules[id(node[char])])]
        if "" not in node and node is not tree:
            alternatives.append(NOTHING)
        rules[id(node)] = book.rule(" | ".join(alternatives)) if alternatives else None
    return rules[id(tree)] or NOTHING


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
        key = other_than(known_names, self._limits.key_chars, self._book) if known_names else self._any.key()
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
            key = conversion.of_pattern(*fit_length(node, least, max(least, self._limits.key_chars)), self._book)
            alternatives.append(self._book.rule(pair(sequence(key, '":"'), value)))
        if not alternatives:
            return None
        return alternatives[0] if len(alternatives) == 1 else self._book.rule(" | ".join(alternatives))


# A schema without `type` is converted for the types that its keywords belong to.
_ABOUT = {
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


class Types(Properties):
    """Writes the values of each type. `value` writes what is inside arrays and objects."""

    def __init__(self, conversion: Conversion, value: Value) -> None:
        super().__init__(conversion, value)
        self._of_type: dict[str, Value] = {
            "null": lambda schema, place: NULL,
            "boolean": lambda schema, place: BOOLEAN,
            "integer": self._integer,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": self.object,
        }

    def values(self, schema: Schema, place: str) -> str:
        """Returns GBNF for a schema without `$ref`, choices and enum. Raises Impossible and InvalidSchema."""
        if "type" in schema:
            types = types_of(schema)
        else:
            types = [name for name, words in _ABOUT.items() if words & schema.keys()]
        alternatives, reasons = [], []
        for name in types:
            try:
                alternatives.append(self._of_type[name](schema, place))
            except Impossible as impossible:
                reasons.append(str(impossible))
            except (PatternError, numbers.Unsupported) as error:
                raise self._refusal(place, str(error)) from None
        if not alternatives:
            raise Impossible("; ".join(reasons))
        return alternatives[0] if len(alternatives) == 1 else self._book.rule(" | ".join(alternatives))

    def _integer(self, schema: Schema, place: str) -> str:
        body = numbers.integer(schema, self._limits.digits)
        return self._any.integer() if body is None else self._book.rule(body)

    def _number(self, schema: Schema, place: str) -> str:
        body = numbers.number(schema, self._limits.digits)
        return self._any.number() if body is None else self._book.rule(body)

    def _string(self, schema: Schema, place: str) -> str:
        least = int(schema.get("minLength", 0))
        most = int(schema["maxLength"]) if "maxLength" in schema else None
        if most is not None and least > most:
            raise Impossible("minLength is above maxLength")
        node = self._pattern_of(schema, place)
        if node is None:
            return self._any.string(least, most)
        limit = self._limits.matched_chars
        most = max(least, node.least, limit) if most is None else min(most, max(least, node.least, limit))
        return conversion.of_pattern(*fit_length(node, least, most), self._book)

    def _pattern_of(self, schema: Schema, place: str) -> Node | None:
        known_format = conversion.FORMATS.get(schema.get("format", ""))
        if "pattern" not in schema:
            return self._pattern_tree(known_format) if known_format else None
        if known_format:
            raise self._refusal(place, "'pattern' and 'format' are not supported side by side")
        try:
            return self._pattern_tree(schema["pattern"])
        except PatternError as error:
            raise self._refusal(step(place, "pattern"), f"'pattern': {error}") from None

    def _array(self, schema: Schema, place: str) -> str:
        least = int(schema.get("minItems", 0))
        prefix = schema.get("prefixItems", [])
        most = int(schema.get("maxItems", max(least, self._limits.items, len(prefix))))
        if most > self._limits.repetitions:
            most = max(least, self._limits.items, len(prefix))
        with self._beginnings.rule_scope(None):
            first: list[str] = []
            for index, part in enumerate(prefix[:most]):
                try:
                    first.append(self._value(part, step(place, "prefixItems", str(index))))
                except Impossible:
                    most = index
                    break
            item = self._item(schema, place) if most > len(first) else None
        tail = elements(first, item, least, most, self._book)
        if not tail.is_possible:
            raise Impossible("there are fewer items than minItems asks for")
        return self._book.rule(tail.enclose("[", "]"))

    def _item(self, schema: Schema, place: str) -> str | None:
        try:
            value = self._value(schema.get("items", True), step(place, "items"))
        except Impossible:
            return None
        return value if value.replace("-", "").isalnum() else self._book.rule(value)
