"""Merges a schema with the targets of its `$ref` and the parts of its `allOf`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from corosrv.formats.structured.schema.conversion import Conversion
from corosrv.formats.structured.schema.merge import Impossible, Schema, Unmergeable, merge, normal
from corosrv.formats.structured.schema.refs import resolve, step


class Flattener:
    """Follows references as far as the limits go, and raises InvalidSchema beyond, or Impossible."""

    def __init__(self, conversion: Conversion) -> None:
        self._document = conversion.document
        self._param = conversion.param
        self._most_references = conversion.limits.depth
        self._refusal = conversion.refusal
        self._check = conversion.check
        self.has_references = False

    def flat(self, schema: Any, place: str = "#") -> Schema:
        """Merges a schema with its references and parts. An `allOf` of choices may remain, to be merged later."""
        if schema is False:
            raise Impossible("the schema is false")
        return {} if schema is True else self._flat(normal(schema), place, frozenset())

    def resolve(self, ref: str, place: str) -> tuple[Any, str]:
        """Returns the schema that a `$ref` at `place` points to, and its place."""
        self.has_references = True
        return resolve(self._document, ref, place, self._param)

    def _flat(self, schema: Schema, place: str, visited: frozenset[int]) -> Schema:
        self._check()
        flat: Schema = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
        parts: Iterator[tuple[Any, str]] = (
            (part, step(place, "allOf", str(i))) for i, part in enumerate(schema.get("allOf", ()))
        )
        if "$ref" in schema:
            target, reached = self.resolve(schema["$ref"], place)
            if id(target) in visited or len(visited) > self._most_references:
                raise self._refusal(place, f"'$ref' {schema['$ref']!r} leads back to itself without a value in between")
            visited |= {id(target)}
            parts = chain([(target, reached)], parts)
        for part, at in parts:
            if part is False:
                raise Impossible("the schema is false")
            if part is not True:
                flat = self._merged(flat, part, at, visited)
        return flat

    def _merged(self, base: Schema, part: Any, at: str, visited: frozenset[int]) -> Schema:
        try:
            return merge(base, self._flat(normal(part), at, visited))
        except Unmergeable as keyword:
            raise self._refusal(
                at, f"'{keyword}' stands in two schemas that must both hold, and cannot be enforced for both"
            ) from None
