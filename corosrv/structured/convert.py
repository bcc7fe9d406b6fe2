"""A JSON schema to rules whose texts are all valid for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corosrv.errors import InvalidSchema
from corosrv.structured import names, numbers, strings
from corosrv.structured.admit import Undecided, admits
from corosrv.structured.anything import BOOLEAN, NULL, Anything
from corosrv.structured.book import RuleBook
from corosrv.structured.disjoint import excludes
from corosrv.structured.effort import Effort
from corosrv.structured.gbnf import Rules, either, json_literal, sequence
from corosrv.structured.limits import Limits
from corosrv.structured.merge import Impossible, Schema, Unmergeable, merge, normal, types_of
from corosrv.structured.objects import SPACE_RULE, Member, elements, members, pair
from corosrv.structured.pattern import Node, PatternError, first_chars, matches, within
from corosrv.structured.pattern_text import parse
from corosrv.structured.refs import resolve, step

# What a schema without a type is about.
_ABOUT = {
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_MOST_BRANCHES = 64  # of a oneOf, each of which is compared to each
_MOST_MERGED = 500  # schemas that come of `allOf`, as each branch of one choice with each of another
_MOST_MERGED_BYTES = 2_000_000


def convert(document: Any, param: str, prefix: str, limits: Limits, effort: Effort) -> Rules:
    """The rules of a document that check() has let pass.

    Raises InvalidSchema for what cannot be held together, and for what takes too long.
    """
    return _Converter(document, param, prefix, limits, effort).convert()


class _Converter:
    """One conversion. Recursive as deep as schemas are nested, which is checked before; references are queued."""

    def __init__(self, document: Any, param: str, prefix: str, limits: Limits, effort: Effort) -> None:
        self._document = document
        self._param = param
        self._limits = limits
        self._effort = effort
        self._read: dict[str, Node] = {}  # patterns
        self._book = RuleBook(prefix, param, limits)
        self._book.shared("space", SPACE_RULE)
        self._any = Anything(self._book, limits)
        self._by_target: dict[int, str] = {}  # rules of what references point to
        self._by_text: dict[str, str] = {}  # rules of schemas that were merged
        self._todo: list[tuple[str, Any, str]] = []
        self._begins_with: dict[str, set[str]] = {}  # rules that a rule may begin with, among those above
        self._owner: str | None = None  # the rule at whose beginning we are
        self._depth = 0
        self._has_references = False
        self._n_merged = 0
        self._n_merged_bytes = 0

    def convert(self) -> Rules:
        start = self._rule_of(self._document, "#")
        while self._todo:
            name, schema, place = self._todo.pop()
            with self._beginning(name):
                try:
                    self._book.define(name, self._value(schema, place))
                except Impossible as impossible:
                    raise self._refused(place, f"no value can be valid: {impossible}") from None
        self._check_progress()
        self._check_end(start)
        return self._book.rules_from(start)

    def _refused(self, place: str, what: str) -> InvalidSchema:
        return InvalidSchema(place, what, self._param)

    def _check(self) -> None:
        self._effort.check(self._param)

    # Rules and references.

    def _rule_of(self, schema: Any, place: str) -> str:
        name = self._by_target.get(id(schema))
        if name is None:
            name = self._by_target[id(schema)] = self._book.reserve()
            self._todo.append((name, schema, place))
        self._note(name)
        return name

    def _note(self, name: str) -> None:
        if self._owner is not None:
            self._begins_with.setdefault(self._owner, set()).add(name)

    @contextmanager
    def _beginning(self, owner: str | None) -> Iterator[None]:
        """At the beginning of a rule; of none, where something stands before."""
        before, self._owner = self._owner, owner
        try:
            yield
        finally:
            self._owner = before

    def _check_progress(self) -> None:
        """Refuses a rule that can begin with itself: following it, one would never come to a value."""
        done: set[str] = set()
        for start in self._begins_with:
            path: list[tuple[str, Iterator[str]]] = [(start, iter(self._begins_with[start]))]
            on_path = {start}
            while path:
                name, following = path[-1]
                after = next(following, None)
                if after is None:
                    path.pop()
                    on_path.discard(name)
                    done.add(name)
                elif after in on_path:
                    raise self._refused("#", "a '$ref' leads back to itself without a value in between")
                elif after not in done:
                    path.append((after, iter(self._begins_with.get(after, ()))))
                    on_path.add(after)

    def _check_end(self, start: str) -> None:
        """Refuses a schema whose every value would contain another one of its own kind."""
        if self._has_references and start in self._book.endless():
            raise self._refused("#", "no value can be valid: each would have to contain another one, without end")

    # One schema.

    def _value(self, schema: Any, place: str) -> str:
        """GBNF for the values of a schema: one item. Raises Impossible."""
        self._check()
        if schema is False:
            raise Impossible("the schema is false")
        if schema is True or not (found := normal(schema)):
            return self._any.value()
        if set(found) == {"$ref"}:
            self._has_references = True
            return self._rule_of(*resolve(self._document, found["$ref"], place, self._param))
        self._depth += 1
        if self._depth > 2 * self._limits.depth:
            raise self._refused(place, "schemas are nested too deep once they are merged")
        try:
            if "$ref" in found or "allOf" in found:
                return self._merged(found, place)
            return self._plain(found, place)
        finally:
            self._depth -= 1

    def _merged(self, schema: Schema, place: str) -> str:
        """A rule for a schema with `allOf`; the same one wherever all comes down to the same."""
        flat = self._flat(schema, place, frozenset())
        text = json.dumps(flat)
        self._n_merged += 1
        self._n_merged_bytes += len(text)
        if self._n_merged_bytes > _MOST_MERGED_BYTES or self._n_merged > _MOST_MERGED:
            raise self._refused(place, "its 'allOf' and '$ref' are too many to be merged")
        if text in self._by_text:
            self._note(self._by_text[text])
            return self._by_text[text]
        name = self._by_text[text] = self._book.reserve()
        self._note(name)
        with self._beginning(name):
            try:
                self._book.define(name, self._plain(flat, place) if "allOf" not in flat else self._choice(flat, place))
            except Impossible:
                del self._by_text[text]
                raise
        return name

    def _flat(self, schema: Schema, place: str, seen: frozenset[int]) -> Schema:
        """The schema with what its `$ref` and `allOf` say; an `allOf` of choices may be left, to be made later."""
        self._check()
        found: Schema = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
        parts = [(part, step(place, "allOf", str(i))) for i, part in enumerate(schema.get("allOf", ()))]
        if "$ref" in schema:
            self._has_references = True
            target, reached = resolve(self._document, schema["$ref"], place, self._param)
            if id(target) in seen or len(seen) > self._limits.depth:
                raise self._refused(place, f"'$ref' {schema['$ref']!r} leads back to itself without a value in between")
            seen |= {id(target)}
            parts.insert(0, (target, reached))
        for part, at in parts:
            if part is False:
                raise Impossible("the schema is false")
            if part is True:
                continue
            try:
                found = merge(found, self._flat(normal(part), at, seen))
            except Unmergeable as keyword:
                raise self._refused(
                    at, f"'{keyword}' stands in two schemas that must both hold, and a grammar cannot hold both"
                ) from None
        return found

    def _plain(self, schema: Schema, place: str) -> str:
        """A schema without `$ref` and `allOf`."""
        if "anyOf" in schema or "oneOf" in schema:
            return self._choice(schema, place)
        if "enum" in schema:
            return self._enum(schema, place)
        return self._typed(schema, place)

    def _choice(self, schema: Schema, place: str) -> str:
        keyword = next(word for word in ("anyOf", "oneOf", "allOf") if word in schema)
        if keyword == "allOf":
            return self._merged(schema, place)
        base = {word: value for word, value in schema.items() if word != keyword}
        branches = [(branch, step(place, keyword, str(i))) for i, branch in enumerate(schema[keyword])]
        if keyword == "oneOf":
            self._check_disjoint(branches, place)
        found, why = [], []
        for branch, at in branches:
            try:
                found.append(self._value({"allOf": [base, branch]} if base else branch, at))
            except Impossible as impossible:
                why.append(str(impossible))
        if not found:
            raise Impossible(f"none of {keyword} is possible: {'; '.join(why[:3])}")
        return either(found)

    def _check_disjoint(self, branches: list[tuple[Any, str]], place: str) -> None:
        if len(branches) > _MOST_BRANCHES:
            raise self._refused(step(place, "oneOf"), f"has more than {_MOST_BRANCHES} schemas; use anyOf")
        flat: list[Schema | None] = []
        for branch, at in branches:
            try:
                flat.append(self._seen_flat(branch, at))
            except Impossible:
                flat.append(None)
        for i, one in enumerate(flat):
            for j, other in enumerate(flat):
                self._check()
                if i != j and one is not None and other is not None and not excludes(one, other, self._seen_flat):
                    raise self._refused(
                        step(place, "oneOf"),
                        f"a value may be valid for both {min(i, j)} and {max(i, j)}, which 'oneOf' forbids; use anyOf, "
                        "or give each a required property with a 'const' of its own",
                    )

    def _seen_flat(self, schema: Any, place: str = "#") -> Schema:
        if schema is False:
            raise Impossible("the schema is false")
        return {} if schema is True else self._flat(normal(schema), place, frozenset())

    def _enum(self, schema: Schema, place: str) -> str:
        """Those values that what stands beside them allows."""
        beside = {keyword: value for keyword, value in schema.items() if keyword != "enum"}
        try:
            values = [value for value in schema["enum"] if self._admits(beside, value)]
        except Undecided as keyword:
            raise self._refused(place, f"'{keyword}' is not supported beside 'enum' or 'const'") from None
        if not values:
            raise Impossible("what stands beside the enum allows none of its values")
        try:
            literals = [json_literal(value) for value in values]
        except ValueError:
            raise self._refused(step(place, "enum"), "holds what JSON cannot: text that is not Unicode") from None
        return either(literals) if len(literals) == 1 else self._book.rule(" | ".join(dict.fromkeys(literals)))

    def _admits(self, schema: Schema, value: Any) -> bool:
        return admits(schema, value, self._limits, self._seen_flat, self._check)

    def _typed(self, schema: Schema, place: str) -> str:
        if "type" in schema:
            types = types_of(schema)
        else:
            types = [name for name, words in _ABOUT.items() if words & schema.keys()]
        found, why = [], []
        for name in types:
            try:
                found.append(getattr(self, f"_{name}")(schema, place))
            except Impossible as impossible:
                why.append(str(impossible))
            except (PatternError, numbers.Unsupported) as error:
                raise self._refused(place, str(error)) from None
        if not found:
            raise Impossible("; ".join(why))
        return found[0] if len(found) == 1 else self._book.rule(" | ".join(found))

    # Types.

    def _null(self, schema: Schema, place: str) -> str:
        return NULL

    def _boolean(self, schema: Schema, place: str) -> str:
        return BOOLEAN

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
        with self._beginning(None):
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

    def _object(self, schema: Schema, place: str) -> str:
        with self._beginning(None):
            known = self._members(schema, place)
            extra = self._extra(schema, place)
        least = int(schema.get("minProperties", 0))
        n_extra = self._limits.extra_properties if extra else 0
        most = int(schema.get("maxProperties", len(known) + n_extra))
        if extra and least > len(known) + 1:
            raise self._refused(
                step(place, "minProperties"), "'minProperties' is only supported up to one more than there are names"
            )
        rest = members(known, extra, n_extra, least, most, self._book)
        if not rest.is_possible:
            raise Impossible("it has more or fewer properties than it may")
        return self._book.rule(rest.within("{", "}"))

    def _members(self, schema: Schema, place: str) -> list[Member]:
        """The properties that have a name here, in the order of the schema."""
        properties: dict[str, Any] = dict(schema.get("properties", {}))
        required = schema.get("required", [])
        for name in required:
            if name not in properties:
                is_other = not self._by_pattern(schema, name, place)
                properties[name] = schema.get("additionalProperties", True) if is_other else True
        found = []
        for name, inner in properties.items():
            at = step(place, "properties", name)
            inner = self._with_patterns(schema, name, inner, place)
            try:
                found.append(Member(pair(json_literal(name, ":"), self._value(inner, at)), name in required))
            except Impossible as impossible:
                if name in required:
                    raise Impossible(f"the required property '{name}' has no value: {impossible}") from None
            except UnicodeEncodeError:
                raise self._refused(at, "the name of a property must be Unicode text") from None
        return found

    def _parsed(self, pattern: str) -> Node:
        """Raises PatternError."""
        self._check()
        if pattern not in self._read:
            self._read[pattern] = parse(pattern, self._limits)
        return self._read[pattern]

    def _patterns(self, schema: Schema, place: str) -> list[tuple[Node, Any, str]]:
        found = []
        for pattern, inner in schema.get("patternProperties", {}).items():
            at = step(place, "patternProperties", pattern)
            try:
                found.append((self._parsed(pattern), inner, at))
            except PatternError as error:
                raise self._refused(at, f"the pattern: {error}") from None
        return found

    def _by_pattern(self, schema: Schema, name: str, place: str) -> list[Any]:
        return [inner for node, inner, _ in self._patterns(schema, place) if matches(node, name, self._check)]

    def _with_patterns(self, schema: Schema, name: str, inner: Any, place: str) -> Any:
        more = self._by_pattern(schema, name, place) if "patternProperties" in schema else []
        return {"allOf": [inner, *more]} if more else inner

    def _extra(self, schema: Schema, place: str) -> str | None:
        """A property without a name of its own: one of a pattern, or any other where the schema says so.

        A schema that names properties and is silent about others gets no others.
        """
        if "patternProperties" in schema:
            return self._of_patterns(schema, place)
        named = [*schema.get("properties", {}), *schema.get("required", [])]
        inner = schema.get("additionalProperties", not named)
        try:
            value = self._value(inner, step(place, "additionalProperties"))
        except Impossible:
            return None
        key = names.other_than(named, self._limits.key_chars, self._book) if named else self._any.key()
        return self._book.rule(pair(sequence(key, '":"'), value))

    def _of_patterns(self, schema: Schema, place: str) -> str | None:
        """Properties of patterns. None where one has a name too: equal keys would come twice, with different values."""
        patterns = self._patterns(schema, place)
        named = {*schema.get("properties", {}), *schema.get("required", [])}
        found = []
        begun: list[Any] = []
        for node, inner, at in patterns:
            first = first_chars(node)
            if len(patterns) > 1 and (first is None or any((first & other).ranges for other in begun)):
                raise self._refused(at, "several patterns are only supported where no two can begin alike")
            begun.append(first)
            if any(matches(node, name, self._check) for name in named):
                continue
            try:
                value = self._value(inner, at)
            except Impossible:
                continue
            least = 1 if node.least == 0 else node.least
            key = strings.of_pattern(*within(node, least, max(least, self._limits.key_chars)), self._book)
            found.append(self._book.rule(pair(sequence(key, '":"'), value)))
        if not found:
            return None
        return found[0] if len(found) == 1 else self._book.rule(" | ".join(found))
