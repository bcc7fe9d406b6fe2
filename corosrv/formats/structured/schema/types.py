"""Converts a schema to GBNF, type by type."""

from __future__ import annotations

from corosrv.formats.structured.pattern_tree import Node, PatternError, fit_length
from corosrv.formats.structured.rule_book import elements
from corosrv.formats.structured.schema import numbers, strings
from corosrv.formats.structured.schema.check import step
from corosrv.formats.structured.schema.conversion import BOOLEAN, NULL, Conversion, Value
from corosrv.formats.structured.schema.merge import Impossible, Schema, types_of
from corosrv.formats.structured.schema.properties import Properties

# A schema without `type` is converted for the types that its keywords belong to.
_ABOUT = {
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


class Types:
    """Writes the values of each type. `value` writes what is inside arrays and objects."""

    def __init__(self, conversion: Conversion, value: Value) -> None:
        self._refusal = conversion.refusal
        self._pattern_tree = conversion.pattern_tree
        self._limits = conversion.limits
        self._beginnings = conversion.beginnings
        self._book = conversion.book
        self._any = conversion.any
        self._value = value
        self._of_type: dict[str, Value] = {
            "null": lambda schema, place: NULL,
            "boolean": lambda schema, place: BOOLEAN,
            "integer": self._integer,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": Properties(conversion, value).object,
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
        return strings.of_pattern(*fit_length(node, least, most), self._book)

    def _pattern_of(self, schema: Schema, place: str) -> Node | None:
        known_format = strings.FORMATS.get(schema.get("format", ""))
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
