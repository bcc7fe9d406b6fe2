"""Makes GBNF for answers of a required form: JSON, calls of tools, and the thoughts before them.

`NotationRules` are for models that write arguments as JSON with other quotes around strings, and none around keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from corosrv.dialects.chat.conversation import (
    NO_ARGUMENTS,
    JsonFormat,
    PlainFormat,
    TaggedFormat,
    Tool,
    name_of,
    parameters_of,
)
from corosrv.dialects.chat.member_grammar import ArgumentRules, ElementRules, MemberRules, texts_without
from corosrv.dialects.chat.tool_schema import MOST_FREE, SchemaSource, is_string, row
from corosrv.dialects.generation.fields import effort
from corosrv.formats import structured
from corosrv.formats.callformats.description import ArgumentRow, CallField, CallFormat, ElementTree, Notation
from corosrv.formats.callformats.writer import in_notation
from corosrv.formats.structured import Effort, SchemaLimits
from corosrv.formats.structured.gbnf import Rules, char_set, either, literal, sequence


class NotationRules(ArgumentRules):
    """Makes the rules of one tool's arguments; see Notation. What a schema asks beyond types is kept for strings,
    numbers and the counts of items alone."""

    def __init__(self, notation: Notation, source: SchemaSource) -> None:
        super().__init__(source, notation.quote)
        self._notation = notation

    def _arguments(self, properties: list[tuple[str, Any]], required: Collection[str]) -> str:
        return self._object(self._source.schema, 0)

    def _value(self, schema: Any, depth: int) -> str:
        self._check_depth(depth)
        if not isinstance(schema, dict) or not schema:
            return self._scalar()
        if "$ref" in schema:
            return self._value(self._resolved(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return either(self._value(branch, depth + 1) for branch in schema[word])
        if is_string(schema):
            return self._string(schema)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return either(literal(in_notation(value, self._notation)) for value in values)
        kind = schema.get("type")
        if isinstance(kind, list):
            return either(self._value({**schema, "type": one}, depth) for one in kind)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "null":
            return '("null" | "None")'
        if kind in ("number", "integer", "boolean"):
            return self._fragment(schema)
        return self._scalar()

    def _resolved(self, ref: str) -> Any:
        target: Any = self._source.schema
        for name in str(ref).split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        return target

    def _object(self, schema: Any, depth: int) -> str:
        named = list((schema.get("properties") or {}).items()) if isinstance(schema, dict) else []
        required = schema.get("required") or () if isinstance(schema, dict) else ()
        if self._notation.sorts_keys:
            named.sort()
        if not named and isinstance(schema, dict) and schema.get("properties") is None and depth:
            pair = self._rule("any", sequence("[A-Za-z_] [A-Za-z0-9_]{0,63}", '":"', self._scalar()))
            return f'"{{" ({pair} ("," {pair}){{0,{MOST_FREE}}})? "}}"'
        pairs = [
            (sequence(literal(f"{name}:"), self._value(part, depth + 1)), name in required) for name, part in named
        ]
        content = row(pairs, "", '","', "", self._rule)
        return self._rule("object", sequence('"{"', content, '"}"'))

    def _array(self, schema: Any, depth: int) -> str:
        item = self._rule("item", self._value(schema.get("items", True), depth + 1))
        least, most = self._counts(schema)
        if most == 0:
            return '"[" "]"'
        filled = f'{item} ("," {item}){{{max(least, 1) - 1},{most - 1}}}'
        return sequence('"["', filled if least else f"({filled})?", '"]"')

    def _string(self, schema: Any) -> str:
        quote = literal(self._notation.quote)
        return sequence(quote, self._text(schema), quote)

    def _scalar(self) -> str:
        """Returns any value that is no object and no array."""
        number = '"-"? [0-9]{1,15} ("." [0-9]{1,15})?'
        return f'({self._string({})} | {number} | "true" | "false" | "null")'


# A model that cannot stop calling would go on until its tokens end, in the middle of a call.
_MOST_CALLS = 16


def format_rules(answer_format: JsonFormat | PlainFormat | TaggedFormat, limits: SchemaLimits) -> Rules:
    """Makes rules for an answer of a form. Raises Refused for a schema, pattern or tag that cannot be used."""
    if isinstance(answer_format, TaggedFormat):
        return _tag_rules(answer_format, limits)
    if isinstance(answer_format, PlainFormat):
        if answer_format.pattern is not None:
            return structured.pattern_rules(
                answer_format.pattern, answer_format.param, "answer", limits, effort(limits)
            )
        return structured.choice_rules(answer_format.texts, answer_format.param, "answer", limits)
    if answer_format.schema is None:
        return structured.any_object_rules(limits)
    return structured.fragment(answer_format.schema, answer_format.param, "answer", limits, effort(limits))


def _tag_rules(answer_format: TaggedFormat, limits: SchemaLimits) -> Rules:
    one_effort = effort(limits)

    def of_schema(schema: dict[str, Any] | bool, param: str, prefix: str) -> Rules:
        return structured.fragment(schema, param, prefix, limits, one_effort)

    return structured.tag_rules(answer_format.tag, answer_format.param, "answer", limits, one_effort, of_schema)


def call_rules(
    tools: Sequence[tuple[int, Tool]], form: CallFormat, is_parallel: bool, schema_param: str, limits: SchemaLimits
) -> Rules:
    """Makes rules for one call of one of these tools, or several; each tool comes with its number in the request.

    `schema_param`: where schemas stand, with {} for the number. Raises Refused for a schema that cannot be used.
    """
    bodies: dict[str, str] = {}
    starts = tuple(dict.fromkeys(start for start, _ in form.headers))  # the format's own is the first
    calls: list[dict[str, str]] = [{} for _ in starts]
    one_effort = effort(limits)
    for number, tool in tools:
        arguments = _arguments(tool, number, form, schema_param, limits, one_effort)
        bodies |= arguments.bodies
        for at, start in enumerate(starts):
            calls[at][f"{_call_rule(at)}-{number}"] = _call(name_of(tool), arguments.start, form, start)
    most = _MOST_CALLS if is_parallel and not form.is_single else 1
    more = f"({_text(form.joint)} call){{0,{most - 1}}}" if most > 1 else ""
    for at, rules in enumerate(calls):
        bodies |= rules
        bodies[_call_rule(at)] = either(rules)
    first = either(sequence(*_before_call(form, start), _call_rule(at)) for at, start in enumerate(starts))
    bodies["calls"] = sequence(first, more, _text(form.end))
    return Rules("calls", bodies)


def _call_rule(start: int) -> str:
    """Returns the name of the rule of calls behind the start of this number; the format's own is 0."""
    return f"call{start or ''}"


def _before_call(form: CallFormat, start: str) -> list[str]:
    """Returns what stands before the first field of the first call."""
    if start != form.start:
        return [literal(start)]
    lead_ins = f"({either(map(literal, form.lead_ins))})?" if form.lead_ins else ""
    if not start:
        return [lead_ins, _optional(form.joint)]
    return [lead_ins, _optional(form.lead), _text(start[len(form.lead) :])]


def _call(name: str, arguments: str, form: CallFormat, start: str) -> str:
    """Returns one call behind this start, from its first field to its last."""
    fields = {
        CallField.NAME: literal(name),
        CallField.ID: "[a-zA-Z0-9]{9}" if form.short_ids else '"call_" [a-zA-Z0-9_]{8,24}',
        CallField.INDEX: "[0-9]{1,2}",
        CallField.ARGUMENTS: arguments,
    }
    texts = list(map(_text, form.inner))
    at = form.fields.index(CallField.ARGUMENTS) - 1
    lasts = [last for begin, last in form.headers if begin == start]
    texts[at] = either(map(literal, lasts)) if len(lasts) > 1 else _text(lasts[0])
    return sequence(
        *(item for field, text in zip(form.fields, (*texts, ""), strict=True) for item in (fields[field], text))
    )


def _arguments(
    tool: Tool, number: int, form: CallFormat, schema_param: str, limits: SchemaLimits, effort: Effort
) -> Rules:
    schema, param, prefix = parameters_of(tool), schema_param.format(number), f"tool{number}"
    if form.arguments is not None:
        source = SchemaSource(schema, param, prefix, limits, effort)
        if isinstance(form.arguments, ArgumentRow):
            return MemberRules(form.arguments, source).rules()
        if isinstance(form.arguments, ElementTree):
            return ElementRules(form.arguments, source).rules()
        return NotationRules(form.arguments, source).rules()
    if schema == NO_ARGUMENTS:
        # Clients send this schema, or none at all, for a function without arguments.
        return Rules("none", {"none": literal("{}")})
    return structured.fragment(schema, param, prefix, limits, effort)


def edge_rules(*texts: str) -> list[Rules]:
    """Makes rules for the texts between thoughts and what follows them, each of which may be missing."""
    names = [f"edge-{number}" for number, text in enumerate(texts) if text]
    return [
        Rules(name, {name: f"{_optional(text)} [ \\n]?"}) for name, text in zip(names, filter(None, texts), strict=True)
    ]


def _text(text: str) -> str:
    return literal(text) if text else ""


def _optional(text: str) -> str:
    return f"{literal(text)}?" if text else ""


def free_rules(begin: str) -> Rules:
    """Makes rules for any text that does not begin with this character, white space aside."""
    return Rules("free", {"free": f"[ \\t\\n]{{0,20}} ({_other(' ', chr(9), chr(10), begin)} [^\\x00]*)?"})


def thought_rules(tags: tuple[str, str], is_open: bool) -> Rules:
    """Makes rules for the thoughts before an answer. `is_open`: the prompt has begun them; else they are optional."""
    opening, closing = tags
    content = texts_without(closing, "thought")
    thoughts = f"{content.start} {literal(closing)} [ \\n]{{0,4}}"
    body = thoughts if is_open else f"({literal(opening)} {thoughts})?"
    return Rules("thoughts", {**content.bodies, "thoughts": body})


def _other(*letters: str) -> str:
    return char_set([(ord(letter), ord(letter)) for letter in dict.fromkeys(letters)], is_negated=True)
