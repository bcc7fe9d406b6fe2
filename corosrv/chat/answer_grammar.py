"""Makes GBNF for answers of a required form: JSON, calls of tools, and the thoughts before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corosrv import structured
from corosrv.chat.conversation import JsonFormat, PlainFormat
from corosrv.chat.formats import ToolFormat
from corosrv.chat.tools import NO_ARGUMENTS, Tool, name_of, parameters_of
from corosrv.generation.schemas import effort
from corosrv.structured import Effort, SchemaLimits
from corosrv.structured.grammar.gbnf import Rules, char_set, either, literal, sequence

# A model that cannot stop calling would go on until its tokens end, in the middle of a call.
_MOST_CALLS = 16


def format_rules(answer_format: JsonFormat | PlainFormat, limits: SchemaLimits) -> Rules:
    """Makes rules for an answer of a form. Raises Refused for a schema or a pattern that cannot be used."""
    if isinstance(answer_format, PlainFormat):
        if answer_format.pattern is not None:
            return structured.pattern_rules(answer_format.pattern, answer_format.param, "answer", limits)
        return structured.choice_rules(answer_format.texts, answer_format.param, "answer", limits)
    if answer_format.schema is None:
        return structured.any_object_rules(limits)
    return structured.fragment(answer_format.schema, answer_format.param, "answer", limits, effort(limits))


def call_rules(
    tools: Sequence[tuple[int, Tool]], form: ToolFormat, is_parallel: bool, schema_param: str, limits: SchemaLimits
) -> Rules:
    """Makes rules for one call of one of these tools, or several; each tool comes with its number in the request.

    `schema_param`: where schemas stand, with {} for the number. Raises Refused for a schema that cannot be used.
    """
    bodies: dict[str, str] = {}
    calls = {}
    one_effort = effort(limits)
    for number, tool in tools:
        arguments = _arguments(tool, number, schema_param, limits, one_effort)
        bodies |= arguments.bodies
        head = literal(form.head + name_of(tool) + form.middle)
        calls[f"call-{number}"] = f'{head} {arguments.start} "}}"'
    most = _MOST_CALLS if is_parallel and not form.is_single else 1
    more = f"({literal(form.between)} call){{0,{most - 1}}}" if most > 1 else ""
    lead = f"{literal(form.lead)}?" if form.lead else ""
    edges = [literal(text) if text else "" for text in (form.opening, form.closing)]
    bodies |= calls
    bodies["call"] = either(calls)
    bodies["calls"] = sequence(lead, edges[0], "call", more, edges[1])
    return Rules("calls", bodies)


def _arguments(tool: Tool, number: int, schema_param: str, limits: SchemaLimits, effort: Effort) -> Rules:
    schema = parameters_of(tool)
    if schema == NO_ARGUMENTS:
        # Clients send this schema, or none at all, for a function without arguments.
        return Rules("none", {"none": literal("{}")})
    return structured.fragment(schema, schema_param.format(number), f"tool{number}", limits, effort)


def free_rules(begin: str) -> Rules:
    """Makes rules for any text that does not begin with this character, white space aside."""
    return Rules("free", {"free": f"[ \\t\\n]{{0,20}} ({_other(' ', chr(9), chr(10), begin)} [^\\x00]*)?"})


def thought_rules(tags: tuple[str, str], is_open: bool) -> Rules:
    """Makes rules for the thoughts before an answer. `is_open`: the prompt has begun them; else they are optional."""
    opening, closing = tags
    bodies = {f"thought-{n}": body for n, body in enumerate(_other_than(closing))}
    thoughts = f"(thought-0)* {literal(closing[0])}* {literal(closing)} [ \\n]{{0,4}}"
    bodies["thoughts"] = thoughts if is_open else f"({literal(opening)} {thoughts})?"
    return Rules("thoughts", bodies)


def _other_than(word: str) -> Iterator[str]:
    """Yields the right sides of rules for a text without `word`: first a piece of it, then what may follow n letters of
    `word` in it."""
    again = f"{literal(word[0])} thought-1"
    for n, letter in enumerate(word):
        goes_on = n > 0 and n < len(word) - 1
        yield either((_other(word[0], letter), again, *((f"{literal(letter)} thought-{n + 1}",) if goes_on else ())))


def _other(*letters: str) -> str:
    return char_set([(ord(letter), ord(letter)) for letter in dict.fromkeys(letters)], is_negated=True)
