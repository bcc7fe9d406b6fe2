"""The schema of a tool's arguments as grammars of models' own notations see it: named properties, some required."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import InvalidSchema
from corosrv.formats import structured
from corosrv.formats.structured import Effort, SchemaLimits
from corosrv.formats.structured.gbnf import NOTHING, Rules, literal, sequence

_MOST_RESOLVED = 64  # alternatives and references of one value
_MOST_TYPED, _MOST_TYPED_DEPTH = 1_024, 8  # members of one tool whose types are known, and how deep they may be
MOST_FREE = 15  # arguments beside the first of a tool that names none
# Keywords that limit strings.
LIMITS_OF_STRINGS = frozenset(("pattern", "format", "minLength", "maxLength"))
_CHOICES = ("$ref", "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "minProperties", "maxProperties")


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """A tool's schema, and what converting parts of it takes."""

    schema: Any
    param: str
    prefix: str  # of all rules
    limits: SchemaLimits
    effort: Effort

    def properties(self) -> tuple[list[tuple[str, Any]], frozenset[str]]:
        """Returns the named properties and which of them are required. Raises InvalidSchema for what is no object."""
        schema = self.schema
        if schema is True:
            return [], frozenset()
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise self.refusal("the arguments of a tool have to be an object")
        for word in _CHOICES:
            if word in schema:
                raise self.refusal(f"this model writes arguments one by one, for which '{word}' is not supported")
        named = dict(schema.get("properties") or {})
        required = frozenset(schema.get("required") or ())
        named |= {name: True for name in required - named.keys()}
        return list(named.items()), required

    def refusal(self, problem: str) -> InvalidSchema:
        return InvalidSchema("#", problem, self.param)

    def fragment(self, schema: Any, name: str) -> Rules:
        """Returns the rules of a part of the schema, as JSON."""
        if isinstance(schema, dict):
            definitions = {word: self.schema[word] for word in ("$defs", "definitions") if word in self.schema}
            schema = {**definitions, **schema}
        return structured.fragment(schema, self.param, f"{self.prefix}{name}", self.limits, self.effort)


def check_whole(source: SchemaSource) -> None:
    """Raises InvalidSchema for a schema that cannot be used, wherever in it the reason stands."""
    structured.fragment(source.schema, source.param, source.prefix, source.limits, source.effort)


def is_string(schema: Any) -> bool:
    """Returns whether all values of a schema are strings, as far as its first level tells."""
    if not isinstance(schema, dict) or any(word in schema for word in ("$ref", "anyOf", "oneOf", "allOf")):
        return False
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return bool(values) and all(isinstance(value, str) for value in values)
    return bool(schema.get("type") == "string")


def alternatives(schema: Any, root: Any) -> list[Any]:
    """Returns the schemas of which a value has to fit one; `root`: that which references are resolved in."""
    found: list[Any] = []
    waiting, n_resolved = [schema], 0
    while waiting:
        part = waiting.pop(0)
        branches = _branches(part, root) if n_resolved < _MOST_RESOLVED else None
        if branches is None:
            found.append(part)
        else:
            n_resolved += 1
            waiting = [*branches, *waiting]
    return found


def _branches(schema: Any, root: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    if isinstance(ref := schema.get("$ref"), str):
        target = root
        for name in ref.split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        return [target]
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return list(schema[word])
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else None


def element_types(schema: Any, item: str) -> dict[str, str]:
    """Returns the JSON types of all members by their paths; that of a list's items has `item` for a name.

    A value that may be a string is one.
    """
    types: dict[str, str] = {}
    waiting = [("", schema, 0)]
    for _ in range(_MOST_TYPED):
        if not waiting:
            break
        path, part, depth = waiting.pop(0)
        for choice in alternatives(part, schema):
            kind = "string" if is_string(choice) else choice.get("type") if isinstance(choice, dict) else None
            if kind and (kind == "string" or path not in types):
                types[path] = str(kind)
            if isinstance(choice, dict) and depth < _MOST_TYPED_DEPTH:
                members = choice.get("properties")
                named = list(members.items()) if isinstance(members, dict) else []
                named += [(item, choice["items"])] if "items" in choice else []
                waiting += [(f"{path}/{name}" if path else name, member, depth + 1) for name, member in named]
    return types


def row(
    pairs: list[tuple[str, bool]], opening: str, between: str, closing: str, rule: Callable[[str, str], str]
) -> str:
    """Returns pairs in their order, of which those that are not required may be left out; nothing where all are.

    `rule`: names a rule with this body.
    """
    first, later = "", closing  # what follows where no pair came, and where one did
    may_be_none = True
    for number, (pair, is_required) in reversed(list(enumerate(pairs))):
        pair_name = rule(f"pair{number}", pair)
        begun = sequence(opening, pair_name, later)
        going_on = sequence(between, pair_name, later)
        if is_required:
            first, later, may_be_none = begun, going_on, False
        else:
            rest = rule(f"rest{number}", later or NOTHING)
            begun, going_on = sequence(opening, pair_name, rest), sequence(between, pair_name, rest)
            first = f"({begun} | {first})" if first else begun
            later = f"({going_on} | {rest})"
    return f"({first})?" if may_be_none and first else first


def literals(text: str) -> str:
    return literal(text) if text else ""


def string_members(tools: Iterable[tuple[str, Any]]) -> frozenset[tuple[str, str]]:
    """Returns the names of tools and of their arguments that are strings; `tools`: names and schemas."""
    return frozenset(
        (tool, name)
        for tool, schema in tools
        if isinstance(schema, dict) and isinstance(schema.get("properties"), dict)
        for name, part in schema["properties"].items()
        if is_string(part)
    )
