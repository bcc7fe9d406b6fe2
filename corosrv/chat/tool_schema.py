"""The schema of a tool's arguments as grammars of models' own notations see it: named properties, some required."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from corosrv import structured
from corosrv.errors import InvalidSchema
from corosrv.structured import Effort, SchemaLimits
from corosrv.structured.grammar.gbnf import NOTHING, Rules, literal, sequence

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
