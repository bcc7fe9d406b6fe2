"""A schema to the values of each type that it is about."""

from __future__ import annotations

from corosrv.structured.grammar.members import elements
from corosrv.structured.patterns.tree import Node, PatternError, within
from corosrv.structured.schema import numbers, strings
from corosrv.structured.schema.anything import BOOLEAN, NULL
from corosrv.structured.schema.conversion import Conversion, Value
from corosrv.structured.schema.merge import Impossible, Schema, types_of
from corosrv.structured.schema.properties import Properties
from corosrv.structured.schema.refs import step

# What a schema without a type is about.
_ABOUT = {
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


class Types:
    """`value` makes what stands inside of arrays and objects."""

    def __init__(self, conversion: Conversion, value: Value) -> None:
        self._refused = conversion.refused
        self._parsed = conversion.parsed
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
        """Of a schema without references, choices and values of its own. Raises Impossible and InvalidSchema."""
        if "type" in schema:
            types = types_of(schema)
        else:
            types = [name for name, words in _ABOUT.items() if words & schema.keys()]
        found, why = [], []
        for name in types:
            try:
                found.append(self._of_type[name](schema, place))
            except Impossible as impossible:
                why.append(str(impossible))
            except (PatternError, numbers.Unsupported) as error:
                raise self._refused(place, str(error)) from None
        if not found:
            raise Impossible("; ".join(why))
        return found[0] if len(found) == 1 else self._book.rule(" | ".join(found))

    def _integer(self, schema: Schema, place: str) -> str:
        found = numbers.integer(schema, self._limits.digits)
        return self._any.integer() if found is None else self._book.rule(found)

    def _number(self, schema: Schema, place: str) -> str:
        found = numbers.number(schema, self._limits.digits)
        return self._any.number() if found is None else self._book.rule(found)

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
        return strings.of_pattern(*within(node, least, most), self._book)

    def _pattern_of(self, schema: Schema, place: str) -> Node | None:
        known_format = strings.FORMATS.get(schema.get("format", ""))
        if "pattern" not in schema:
            return self._parsed(known_format) if known_format else None
        if known_format:
            raise self._refused(place, "'pattern' and 'format' are not supported side by side")
        try:
            return self._parsed(schema["pattern"])
        except PatternError as error:
            raise self._refused(step(place, "pattern"), f"'pattern': {error}") from None

    def _array(self, schema: Schema, place: str) -> str:
        least = int(schema.get("minItems", 0))
        prefix = schema.get("prefixItems", [])
        most = int(schema.get("maxItems", max(least, self._limits.items, len(prefix))))
        if most > self._limits.repetitions:
            most = max(least, self._limits.items, len(prefix))
        with self._beginnings.of(None):
            first: list[str] = []
            for index, part in enumerate(prefix[:most]):
                try:
                    first.append(self._value(part, step(place, "prefixItems", str(index))))
                except Impossible:
                    most = index
                    break
            item = self._item(schema, place) if most > len(first) else None
        rest = elements(first, item, least, most, self._book)
        if not rest.is_possible:
            raise Impossible("there are fewer items than minItems asks for")
        return self._book.rule(rest.within("[", "]"))

    def _item(self, schema: Schema, place: str) -> str | None:
        try:
            found = self._value(schema.get("items", True), step(place, "items"))
        except Impossible:
            return None
        return found if found.replace("-", "").isalnum() else self._book.rule(found)
