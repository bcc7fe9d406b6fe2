"""Generates bodies from the API's own document, and lets parts of them grow: longer, more of them, and deeper.

What the document leaves open (schemas, structural tags, grammars, calls) comes from SEEDS, by the name of the member.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

LARGEST = 200_000  # characters of a body
SIZES = (10, 40, 250, 4000)  # below and above most limits of lists
GENERATING = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/completion", "/infill",
    "/apply-template", "/api/chat", "/api/generate",
)  # fmt: skip

_SCHEMA = {
    "type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]x{1,3}|y$"}, "b": {"$ref": "#/$defs/n"}},
    "required": ["a"], "$defs": {"n": {"anyOf": [{"enum": ["p", 1]}, {"type": "array", "items": {"type": "integer"}}]}},
}  # fmt: skip
_TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text", "excludes": ["!no"]}, "end": ["</a>"]}
_TRIGGERED = {"type": "triggered_tags", "triggers": ["<a"], "tags": [_TAG], "excludes": ["!bad"]}
_FORMAT = {"type": "sequence", "elements": [{"type": "or", "elements": [_TAG, {"type": "regex", "pattern": "[ab]+"}]},
                                            {"type": "const_string", "value": "c"}, _TRIGGERED]}  # fmt: skip
_STRUCTURES = [{"begin": "<a>", "schema": _SCHEMA, "end": "</a>"}]
_TOOL = {"name": "f", "description": "d", "parameters": _SCHEMA, "input_schema": _SCHEMA}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "ax"}'}}
# Values of members whose shape the document does not tell, or that are more interesting so.
SEEDS: dict[str, list[Any]] = {
    "response_format": [
        {"type": "structural_tag", "structures": _STRUCTURES, "triggers": ["<a>"]},
        {"type": "structural_tag", "format": _TAG},
        {"type": "structural_tag", "format": _FORMAT},
        {"type": "structural_tag", "format": _TRIGGERED},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
    ],
    "structured_outputs": [
        {"structural_tag": {"format": _TRIGGERED}}, {"json": _SCHEMA}, {"regex": "(a|b)*[^c-e]{2}"},
        {"choice": ["a", "b"]}, {"grammar": 'root ::= "a" b*\nb ::= [x-z] | "c"'},
    ],
    "json_schema": [_SCHEMA], "guided_json": [_SCHEMA], "schema": [_SCHEMA], "guided_regex": ["[a-d]{2,5}(e|f)"],
    "guided_choice": [["a", "b"]], "grammar": ['root ::= "a" b*\nb ::= [x-z] | "c"'],
    "tools": [[{"type": "function", "function": _TOOL}], [{"type": "function", **_TOOL}], [_TOOL]],
    "messages": [
        [{"role": "user", "content": "a"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "tool_calls": [_CALL]},
         {"role": "tool", "tool_call_id": "c", "content": "b"}],
    ],
    "stop": [["a", "b"]], "logit_bias": [{"5": 1}, [["a", 1]]], "input": ["a", [{"role": "user", "content": "a"}]],
    "prompt": ["a", ["a", [5]], [{"prompt_string": "a"}]], "format": ["json", _SCHEMA],
}  # fmt: skip


# Members without which a request is about its model alone, though the document does not require them; None: any value.
NEEDED: dict[str, dict[str, Any]] = {
    "/api/chat": {"model": "synthetic", "messages": None}, "/api/generate": {"model": "synthetic", "prompt": None}
}  # fmt: skip

# What asks for an answer's form: most of the work of a request is done for it.
_FORMS = ("response_format", "structured_outputs", "tools", "format")


def bodies(document: dict[str, Any], path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Returns the bodies for one route: what it requires, some members more, and one or two parts of it grown."""
    schema = _resolved(
        document, document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    )

    @st.composite
    def make(draw: DrawFn) -> dict[str, Any]:
        required = [*schema.get("required", []), *NEEDED.get(path, {})]
        members = [name for name in SEEDS if name in schema["properties"]]
        forms = [name for name in members if name in _FORMS]
        grown = draw(st.sampled_from(forms if forms and draw(st.booleans()) else members))
        others = draw(st.lists(st.sampled_from(sorted(schema["properties"])), max_size=1))
        names = dict.fromkeys([*required, grown, *others])
        body = {name: draw(_values(document, name, schema["properties"][name], 3)) for name in names}
        body |= {name: value for name, value in NEEDED.get(path, {}).items() if value is not None}
        for _ in range(draw(st.integers(1, 2))):
            _grow(draw, body, grown)
        return body

    return make()


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _values(document: dict[str, Any], name: str, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    schema = _resolved(document, schema)
    if name in SEEDS:
        return st.sampled_from(SEEDS[name]).map(copy.deepcopy)
    branches = [_resolved(document, branch) for branch in schema.get("anyOf", schema.get("oneOf", []))]
    branches = [branch for branch in branches if branch.get("type") != "null"]
    if branches:
        return st.one_of(*(_values(document, name, branch, depth) for branch in branches))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "string":
        return st.sampled_from(["a", "b c", "<a>"])
    if kind in ("integer", "number"):
        least = schema.get("minimum", 0)
        return st.sampled_from([least, min(schema.get("maximum", least + 4), least + 4)])
    if kind == "boolean":
        return st.booleans()
    if kind == "array" and depth:
        return st.lists(_values(document, "", schema.get("items", {}), depth - 1), min_size=1, max_size=2)
    if kind == "object" and depth:
        members = schema.get("properties", {})
        return st.fixed_dictionaries(
            {
                one: _values(document, one, of, depth - 1)
                for one, of in members.items()
                if one in schema.get("required", ())
            }
        )
    return st.sampled_from([{}, [], "a", 1, [_CALL], _SCHEMA]).map(copy.deepcopy)


# Growing


# Objects that may have any members; what is added to others is refused at once.
_MAPS = ("properties", "$defs", "logit_bias", "metadata", "chat_template_kwargs", "schema", "parameters", "json_schema")


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the way to each text, list and object within a value, itself left out."""
    if at and (isinstance(value, (str, list)) or (isinstance(value, dict) and at[-1] in _MAPS)):
        yield at
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _places(inner, (*at, step))


def _grow(draw: DrawFn, body: dict[str, Any], name: str) -> None:
    """Makes a part of this member grow."""
    places = [place for place in _places(body) if place[0] == name]
    if not places:
        return  # a number
    lists = [place for place in places if isinstance(_at(body, place), list)]
    words = [place for place in lists if all(isinstance(item, str) for item in _at(body, place))]
    *way, last = draw(st.sampled_from(draw(st.sampled_from([places, lists or places, words or places]))))
    holder = _at(body, way)
    n = draw(st.sampled_from(SIZES))
    room = LARGEST - len(json.dumps(body, ensure_ascii=False))
    holder[last] = _larger(draw, holder[last], n, room)


def _at(value: Any, way: Iterable[Any]) -> Any:
    for step in way:
        value = value[step]
    return value


def _larger(draw: DrawFn, value: Any, n: int, room: int) -> Any:
    if isinstance(value, str):
        return value + draw(st.sampled_from(_TEXTS))(n * draw(st.sampled_from((1, 10))))[: max(room, 0)]
    size = len(json.dumps(value)) + 8
    how = draw(st.sampled_from(("long", "many", "long", "deep")))
    if how == "deep":
        for _ in range(min(n, max(room, 0) // 12, 60)):
            value = [value] if isinstance(value, list) else {"type": "array", "items": value}
        return value
    part = value[0] if isinstance(value, list) and value else next(iter(value.values()), "a") if value else "a"
    letters = 1000 if how == "long" else 0
    count = max(1, min(n, room // (len(json.dumps(part)) + letters + 8) if room > size else 1))
    if isinstance(part, str) and isinstance(value, list):
        # None of them stands within another, as words may not that are looked for in a text.
        return [*value, *(f"{number:04}{_word(number, letters)}" for number in range(count))]
    if isinstance(value, list):
        return value + [_renamed(part, number, letters) for number in range(count)]
    return value | {f"k{number}{'x' * letters}": _renamed(part, number, letters) for number in range(count)}


def _renamed(value: Any, number: int, letters: int) -> Any:
    """The same value, with other words: what is told apart costs more than what is the same."""
    if isinstance(value, str):
        return f"{value}{number}" + _word(number, letters)
    if isinstance(value, list):
        return [_renamed(inner, number, letters) for inner in value]
    if isinstance(value, dict):
        plain = ("type", "role", "$ref", "pattern")
        return {name: inner if name in plain else _renamed(inner, number, letters) for name, inner in value.items()}
    return value


def _word(number: int, letters: int) -> str:
    return "".join("abcdefghijklmnopqrstuvwxyz"[(number * i * i + i) % 26] for i in range(1, letters + 1))


_TEXTS = (
    lambda n: "a" * n,
    lambda n: "ab" * (n // 2),
    lambda n: _word(7, n),
    lambda n: "".join(chr(0x4E00 + 2 * (i % 9000)) for i in range(n)),
    lambda n: "(" * (n // 2) + ")" * (n // 2),
    lambda n: "[^a]?" * (n // 5),
    lambda n: "a|" * (n // 2),
    lambda n: "\n" * n,
    lambda n: '{"a":' * (n // 5),
    lambda n: '\nx ::= "a" | x' * (n // 14),
)
