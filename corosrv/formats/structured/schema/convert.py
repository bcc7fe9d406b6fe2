"""Converts a JSON schema to rules whose texts are all valid for it.

A schema is first merged with the targets of its `$ref` and the parts of its `allOf`. The rules used last are cached, as
clients send the same few schemas again and again.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from threading import Lock
from typing import Any

from corosrv.formats.structured.gbnf import Rules, either, json_literal
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.schema.check import resolve, step
from corosrv.formats.structured.schema.conversion import Conversion
from corosrv.formats.structured.schema.disjoint import Undecided, admits, overlap
from corosrv.formats.structured.schema.merge import Impossible, Schema, Unmergeable, merge, normal
from corosrv.formats.structured.schema.types import Types


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


_MOST_BRANCHES = 64  # of a oneOf, each of which is compared to each
_MOST_MERGED = 500  # schemas that come of `allOf`, as each branch of one choice with each of another
_MOST_MERGED_BYTES = 2_000_000


def convert(document: Any, param: str, prefix: str, limits: SchemaLimits, effort: Effort) -> Rules:
    """Converts a document that check() has let pass.

    Raises InvalidSchema where keywords cannot be enforced together, and where it takes too long.
    """
    return _Converter(Conversion(document, param, prefix, limits, effort)).convert()


class _Converter:
    """Recursive as deep as schemas are nested, which is checked before; references are queued."""

    def __init__(self, conversion: Conversion) -> None:
        self._document = conversion.document
        self._limits = conversion.limits
        self._book = conversion.book
        self._any = conversion.any
        self._beginnings = conversion.beginnings
        self._refusal = conversion.refusal
        self._check = conversion.check
        self._flattener = Flattener(conversion)
        self._types = Types(conversion, self._value)
        self._by_target: dict[int, str] = {}  # rules of what references point to
        self._by_text: dict[str, str] = {}  # rules of schemas that were merged
        self._todo: list[tuple[str, Any, str]] = []
        self._depth = 0
        self._n_merged = 0
        self._n_merged_bytes = 0

    def convert(self) -> Rules:
        start = self._rule_of(self._document, "#")
        while self._todo:
            name, schema, place = self._todo.pop()
            with self._beginnings.rule_scope(name):
                try:
                    self._book.define(name, self._value(schema, place))
                except Impossible as impossible:
                    raise self._refusal(place, f"no value can be valid: {impossible}") from None
        if self._beginnings.has_circle():
            raise self._refusal("#", "a '$ref' leads back to itself without a value in between")
        if self._flattener.has_references and start in self._book.endless():
            raise self._refusal("#", "no value can be valid: each would have to contain another one, without end")
        return self._book.rules_from(start)

    def _rule_of(self, schema: Any, place: str) -> str:
        name = self._by_target.get(id(schema))
        if name is None:
            name = self._by_target[id(schema)] = self._book.reserve()
            self._todo.append((name, schema, place))
        self._beginnings.note(name)
        return name

    def _value(self, schema: Any, place: str) -> str:
        """Returns GBNF for the values of a schema: one item. Raises Impossible."""
        self._check()
        if schema is False:
            raise Impossible("the schema is false")
        if schema is True or not (keywords := normal(schema)):
            return self._any.value()
        if set(keywords) == {"$ref"}:
            return self._rule_of(*self._flattener.resolve(keywords["$ref"], place))
        self._depth += 1
        if self._depth > 2 * self._limits.depth:
            raise self._refusal(place, "schemas are nested too deep once they are merged")
        try:
            if "$ref" in keywords or "allOf" in keywords:
                return self._merged(keywords, place)
            return self._without_references(keywords, place)
        finally:
            self._depth -= 1

    def _merged(self, schema: Schema, place: str) -> str:
        """Returns a rule for a schema with `allOf`; equal merged schemas share one rule."""
        flat = self._flattener.flat(schema, place)
        text = json.dumps(flat)
        self._n_merged += 1
        self._n_merged_bytes += len(text)
        if self._n_merged_bytes > _MOST_MERGED_BYTES or self._n_merged > _MOST_MERGED:
            raise self._refusal(place, "its 'allOf' and '$ref' are too many to be merged")
        if text in self._by_text:
            self._beginnings.note(self._by_text[text])
            return self._by_text[text]
        name = self._by_text[text] = self._book.reserve()
        self._beginnings.note(name)
        with self._beginnings.rule_scope(name):
            try:
                self._book.define(
                    name, self._without_references(flat, place) if "allOf" not in flat else self._choice(flat, place)
                )
            except Impossible:
                del self._by_text[text]
                raise
        return name

    def _without_references(self, schema: Schema, place: str) -> str:
        """Returns GBNF for a schema without `$ref` and `allOf`."""
        if "anyOf" in schema or "oneOf" in schema:
            return self._choice(schema, place)
        if "enum" in schema:
            return self._enum(schema, place)
        return self._types.values(schema, place)

    def _choice(self, schema: Schema, place: str) -> str:
        keyword = next(word for word in ("anyOf", "oneOf", "allOf") if word in schema)
        if keyword == "allOf":
            return self._merged(schema, place)
        base = {word: value for word, value in schema.items() if word != keyword}
        if keyword == "oneOf":
            self._check_disjoint(schema[keyword], place)
        alternatives, reasons = [], []
        for i, branch in enumerate(schema[keyword]):
            at = step(place, keyword, str(i))
            try:
                alternatives.append(self._value({"allOf": [base, branch]} if base else branch, at))
            except Impossible as impossible:
                reasons.append(str(impossible))
        if not alternatives:
            raise Impossible(f"none of {keyword} is possible: {'; '.join(reasons[:3])}")
        return either(alternatives)

    def _check_disjoint(self, branches: list[Any], place: str) -> None:
        at = step(place, "oneOf")
        if len(branches) > _MOST_BRANCHES:
            raise self._refusal(at, f"has more than {_MOST_BRANCHES} schemas; use anyOf")
        flat = [self._flat_or_none(branch, step(at, str(i))) for i, branch in enumerate(branches)]
        pair = overlap(flat, self._flattener.flat, self._check)
        if pair is not None:
            raise self._refusal(
                at,
                f"a value may be valid for both {min(pair)} and {max(pair)}, which 'oneOf' forbids; use anyOf, "
                "or give each a required property with a 'const' of its own",
            )

    def _flat_or_none(self, schema: Any, place: str) -> Schema | None:
        """Merges a schema's parts; returns None where no value is valid."""
        try:
            return self._flattener.flat(schema, place)
        except Impossible:
            return None

    def _enum(self, schema: Schema, place: str) -> str:
        """Makes rules for the values of an enum that the keywords beside it allow."""
        other_keywords = {keyword: value for keyword, value in schema.items() if keyword != "enum"}
        try:
            values = [value for value in schema["enum"] if self._admits(other_keywords, value)]
        except Undecided as keyword:
            raise self._refusal(place, f"'{keyword}' is not supported beside 'enum' or 'const'") from None
        if not values:
            raise Impossible("the keywords beside the enum allow none of its values")
        try:
            literals = [json_literal(value) for value in values]
        except ValueError:
            raise self._refusal(step(place, "enum"), "holds what JSON cannot: text that is not Unicode") from None
        return either(literals) if len(literals) == 1 else self._book.rule(" | ".join(dict.fromkeys(literals)))

    def _admits(self, schema: Schema, value: Any) -> bool:
        return admits(schema, value, self._limits, self._flattener.flat, self._check)


_ENTRIES = 256
_BYTES = 64 * 1024 * 1024


class RulesCache:
    """Keeps the rules that were used last. Any thread may use it."""

    def __init__(self, most_entries: int = _ENTRIES, most_bytes: int = _BYTES) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._rules: OrderedDict[bytes, Rules] = OrderedDict()
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, schema: Any, kind: str, make: Callable[[], Rules]) -> Rules:
        """Returns the rules of a checked schema; makes them if they are not kept. `kind`: what else they depend on."""
        # The order of names counts: it is that of the properties in the answer.
        key = hashlib.sha256(f"{kind}\n{json.dumps(schema)}".encode()).digest()
        with self._lock:
            if key in self._rules:
                self._rules.move_to_end(key)
                return self._rules[key]
        rules = make()  # outside of the lock, for it takes long; two threads may make the same
        with self._lock:
            self._forget(key)
            self._rules[key] = rules
            self._n_bytes += _size(rules)
            while len(self._rules) > self._most_entries or self._n_bytes > self._most_bytes:
                self._forget(next(iter(self._rules)))
        return rules

    def _forget(self, key: bytes) -> None:
        if key in self._rules:
            self._n_bytes -= _size(self._rules.pop(key))


def _size(rules: Rules) -> int:
    return sum(len(name) + len(body) for name, body in rules.bodies.items())
