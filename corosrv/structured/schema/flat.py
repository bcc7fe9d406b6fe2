"""A schema with what its `$ref` and `allOf` say, as one."""

from __future__ import annotations

from typing import Any

from corosrv.structured.schema.conversion import Conversion
from corosrv.structured.schema.merge import Impossible, Schema, Unmergeable, merge, normal
from corosrv.structured.schema.refs import resolve, step


class Flattener:
    """Follows references as far as the limits go, and raises InvalidSchema beyond, or Impossible."""

    def __init__(self, conversion: Conversion) -> None:
        self._document = conversion.document
        self._param = conversion.param
        self._most_references = conversion.limits.depth
        self._refused = conversion.refused
        self._check = conversion.check
        self.has_references = False

    def flat(self, schema: Any, place: str = "#") -> Schema:
        """An `allOf` of choices may be left, to be made later."""
        if schema is False:
            raise Impossible("the schema is false")
        return {} if schema is True else self._flat(normal(schema), place, frozenset())

    def resolve(self, ref: str, place: str) -> tuple[Any, str]:
        """The schema that a `$ref` at `place` points to, and where it is."""
        self.has_references = True
        return resolve(self._document, ref, place, self._param)

    def _flat(self, schema: Schema, place: str, seen: frozenset[int]) -> Schema:
        self._check()
        found: Schema = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
        parts = [(part, step(place, "allOf", str(i))) for i, part in enumerate(schema.get("allOf", ()))]
        if "$ref" in schema:
            target, reached = self.resolve(schema["$ref"], place)
            if id(target) in seen or len(seen) > self._most_references:
                raise self._refused(place, f"'$ref' {schema['$ref']!r} leads back to itself without a value in between")
            seen |= {id(target)}
            parts.insert(0, (target, reached))
        for part, at in parts:
            if part is False:
                raise Impossible("the schema is false")
            if part is not True:
                found = self._merged(found, part, at, seen)
        return found

    def _merged(self, found: Schema, part: Any, at: str, seen: frozenset[int]) -> Schema:
        try:
            return merge(found, self._flat(normal(part), at, seen))
        except Unmergeable as keyword:
            raise self._refused(
                at, f"'{keyword}' stands in two schemas that must both hold, and cannot be enforced for both"
            ) from None
