"""Bodies with the longest lists and maps that a type allows, one for each list and map field that it has, at
any depth.

A type is what a route decodes its bodies as. Fields of any type get lists and maps of all the forms that a dialect
reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import inspect

from corosrv.formats.bodies import LIMITS

# What makes an answer short, for the bodies that ask for one.
_SHORT = {"max_tokens": 1, "n_predict": 1, "max_output_tokens": 16}
_WORDS = "a b c d "

_TEXT_PARTS = ({"type": "text", "text": "a"}, {"type": "input_text", "text": "a"})
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# What the members of a list may be where the type does not say.
ANY_ITEMS: tuple[Any, ...] = (
    1, "a", [5], {}, None, 1.5, *_TEXT_PARTS, _CALL, _TOOL,
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "a"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "a"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
    {"type": "item_reference", "id": "msg_a"},
    {"prompt_string": "a"},
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How large a body may be."""

    values: int = LIMITS.values
    keys: int = LIMITS.keys
    n_bytes: int = 2**25


@dataclass(frozen=True)
class Body:
    """One body: which list or map is long in it, what is in that, and the bytes that are sent."""

    name: str
    data: bytes


def bodies(kind: Any, example: Any, limits: Limits) -> Iterator[Body]:
    """Yields a body for each list and map of a type, in several shapes. `example` is a good body."""
    for place in _places(inspect.type_info(kind), ()):
        for shape in _shapes(place, limits):
            yield Body(f"{place} {shape.name}", _within(example, place, shape))
    if isinstance(example, dict):
        items = b",".join([b"[]"] * (limits.values - 100))
        yield Body("an unknown field", _with(example, "unknown_to_all", b"[%b]" % items))


# Where a list or map stands: the way to it, and what its own members may be.

Step = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Place:
    """A list or map within a body: the JSON around it, step by step from within, and its own type."""

    path: str
    steps: tuple[tuple[Step, str, int], ...]  # how it is wrapped; "list" where that is a list, and its longest length
    kind: inspect.Type

    def __str__(self) -> str:
        return self.path


def _places(kind: inspect.Type, seen: tuple[type, ...]) -> Iterator[Place]:
    """Every list and map in a type; a struct within itself is entered once."""
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _places(one, seen)
    elif isinstance(kind, inspect.StructType) and kind.cls not in seen:
        for field in kind.fields:
            for place in _places(field.type, (*seen, kind.cls)):
                yield _deeper(place, _in_struct(kind, field), f".{field.encode_name}")
    elif isinstance(kind, (inspect.ListType, inspect.CollectionType)):
        yield Place("", (), kind)
        longest = kind.max_length if kind.max_length is not None else LIMITS.values
        if not _is_any(kind.item_type):
            for place in _places(kind.item_type, seen):
                yield _deeper(place, lambda inner: inner, "[]", longest)
    elif isinstance(kind, inspect.DictType):
        yield Place("", (), kind)
        if not _is_any(kind.value_type):
            for place in _places(kind.value_type, seen):
                yield _deeper(place, lambda inner: b'{"k":' + inner + b"}", "{}")
    elif isinstance(kind, inspect.AnyType):  # alone: a field that is refused by name, or not read
        yield Place("", (), inspect.ListType(inspect.ListType(inspect.AnyType(), max_length=0)))
        yield Place("", (), inspect.DictType(inspect.StrType(), inspect.IntType()))


def _deeper(place: Place, step: Step, name: str, longest: int = 0) -> Place:
    wrapped = (step, "list" if longest else "", longest)
    return replace(place, path=name + place.path, steps=(*place.steps, wrapped))


def _in_struct(struct: inspect.StructType, chosen: inspect.Field) -> Step:
    others = {
        field.encode_name: _least(field.type) for field in struct.fields if field.required and field is not chosen
    }
    if struct.tag_field is not None:
        others[struct.tag_field] = struct.tag
    return lambda inner: _with(others, chosen.encode_name, inner)


def _bare(kind: inspect.Type) -> inspect.Type:
    return _bare(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _least(kind: inspect.Type, text: str = "a") -> Any:
    """The smallest good value of a type; `text` for its strings."""
    kind = _bare(kind)
    match kind:
        case inspect.UnionType():
            return _least(next(one for one in kind.types if not isinstance(_bare(one), inspect.NoneType)), text)
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.StrType():
            return text[: kind.max_length]
        case inspect.IntType():
            return kind.ge if kind.ge is not None else 1
        case inspect.FloatType():
            return kind.ge if kind.ge is not None else 0.5
        case inspect.BoolType():
            return True
        case inspect.ListType() | inspect.CollectionType():
            return [_least(kind.item_type, text)] * (kind.min_length or 0)
        case inspect.TupleType():
            return [_least(one, text) for one in kind.item_types]
        case inspect.StructType():
            tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
            return tag | {field.encode_name: _least(field.type, text) for field in kind.fields if field.required}
        case inspect.DictType():
            return {}
        case inspect.NoneType():
            return None
        case _:
            return text


# What fills it.


@dataclass(frozen=True)
class Shape:
    """What fills the list or map of a place, and how often each list around it has it."""

    name: str
    inner: Callable[[int], bytes]  # of so many parts of a whole body
    outer: int = 1


def _shapes(place: Place, limits: Limits) -> Iterator[Shape]:
    is_map = isinstance(place.kind, inspect.DictType)
    fillings = _maps(place.kind, limits) if is_map else _lists(place.kind, limits)
    has_list = any(name for _, name, _ in place.steps)
    for name, inner in fillings:
        yield Shape(name, inner)
        if has_list and (not is_map or name in _IN_MANY):
            yield Shape(f"{name}, in each of many", inner, outer=1024)


def _lists(kind: Any, limits: Limits) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    longest = kind.max_length if kind.max_length is not None else limits.values
    for item in _items(kind.item_type):
        data = json.dumps(item).encode()
        yield f"of {data[:40].decode()}", lambda parts, data=data: _row(data, longest, parts, limits)  # type: ignore[misc]
    for item in _items(kind.item_type, text=_WORDS):
        if _WORDS in (data := json.dumps(item)):
            yield f"of long {data[:32]}", lambda parts, data=data: _long_row(data, longest, parts, limits)  # type: ignore[misc]


def _items(kind: inspect.Type, text: str = "a") -> Iterator[Any]:
    kind = _bare(kind)
    if isinstance(kind, inspect.AnyType) or (isinstance(kind, inspect.DictType) and _is_any(kind.value_type)):
        is_map = isinstance(kind, inspect.DictType)
        yield from (_retold(item, text) for item in ANY_ITEMS if isinstance(item, dict) or not is_map)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _items(one, text)
    else:
        yield _least(kind, text)


def _is_any(kind: inspect.Type) -> bool:
    return isinstance(_bare(kind), inspect.AnyType)


def _retold(item: Any, text: str) -> Any:
    """The same with another text where it has one."""
    if item == "a":
        return text
    if isinstance(item, dict):
        return {name: _retold(value, text) for name, value in item.items()}
    return [_retold(one, text) for one in item] if isinstance(item, list) else item


def _row(item: bytes, longest: int, parts: int, limits: Limits) -> bytes:
    n_values = _n_values(item)
    count = min(longest, limits.values // parts // n_values - 20, limits.n_bytes // parts // (len(item) + 1) - 200)
    return b"[" + b",".join([item] * max(count, 1)) + b"]"


def _n_values(item: bytes) -> int:
    """As the server counts them in a list: strings and commas."""
    return item.count(b'"') // 2 + item.count(b",") + 1


def _long_row(item: str, longest: int, parts: int, limits: Limits) -> bytes:
    count = min(longest, max(1024 // parts, 2))
    room = limits.n_bytes // parts // count - len(item) - 20
    long = item.replace(_WORDS, _WORDS * max(room // len(_WORDS) // item.count(_WORDS), 1)).encode()
    return b"[" + b",".join([long] * count) + b"]"


def _maps(kind: inspect.DictType, limits: Limits) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    most = kind.max_length if kind.max_length is not None else limits.keys
    for value in (1, "a", {}) if _is_any(kind.value_type) else _items(kind.value_type):
        data = json.dumps(value).encode()
        yield f"of numbers to {data[:32].decode()}", lambda parts, data=data: _keys(data, most, parts, limits)  # type: ignore[misc]
    if _is_any(kind.value_type):
        yield from ((name, lambda parts, make=make: make(limits, parts)) for name, make in _SCHEMAS)  # type: ignore[misc]


def _keys(value: bytes, most: int, parts: int, limits: Limits) -> bytes:
    count = min(most, limits.values // parts // 2, limits.n_bytes // parts // (len(value) + 12))
    return b"{" + b",".join(b'"%d":%b' % (number, value) for number in range(max(count, 1))) + b"}"


def _listing(before: str, item: Callable[[int], str], after: str, most: int = 2**30) -> Callable[[Limits, int], bytes]:
    def make(limits: Limits, parts: int) -> bytes:
        n_values = _n_values(item(0).encode())
        room = limits.n_bytes // parts // (len(item(10**6)) + 1) - 200
        count = max(min(most, limits.values // parts // n_values - 30, room), 1)
        return (before + ",".join(map(item, range(count))) + after).encode()

    return make


# Maps that are JSON schemas, tools' arguments, prompts and parts, with a long list in each.
_SCHEMAS = (
    ("as properties", _listing('{"type":"object","properties":{', lambda i: f'"k{i}":{{"type":"string"}}', "}}", 4096)),
    ("as required", _listing('{"type":"object","required":[', lambda i: f'"k{i}"', "]}")),
    ("as an enum", _listing('{"enum":[', lambda i: f'"k{i}"', "]}")),
    ("as an enum of numbers", _listing('{"enum":[', str, "]}")),
    ("as a constant", _listing('{"const":[', lambda i: "1", "]}")),
    ("as anyOf", _listing('{"anyOf":[', lambda i: '{"type":"string"}', "]}")),
    ("as allOf", _listing('{"allOf":[', lambda i: '{"type":"string"}', "]}")),
    ("as oneOf", _listing('{"oneOf":[', lambda i: f'{{"const":{i}}}', "]}")),
    ("as types", _listing('{"type":[', lambda i: '"string"', "]}")),
    ("as prefixItems", _listing('{"type":"array","prefixItems":[', lambda i: "{}", "]}")),
    ("as definitions", _listing('{"$defs":{', lambda i: f'"k{i}":{{}}', '},"$ref":"#/$defs/k0"}', 4096)),
    ("as a pattern", _listing('{"type":"string","pattern":"(', lambda i: "a", ')"}')),
    ("as a description", _listing('{"type":"string","description":"', lambda i: _WORDS, '"}')),
    ("as unread members", _listing('{"type":"string","examples":[', lambda i: "[]", "]}")),
    ("as a prompt's content", _listing('{"content":[', lambda i: '{"type":"text","text":"a"}', "]}")),
    ("as a prompt's media", _listing('{"prompt_string":"a","multimodal_data":[', lambda i: '"a"', "]}")),
    ("as a message's parts", _listing('{"role":"user","content":[', lambda i: '{"type":"text","text":"a"}', "]}")),
    ("as a tool's output", _listing(
        '{"type":"function_call_output","call_id":"c","output":[', lambda i: '{"type":"input_text","text":"a"}', "]}"
    )),
    ("as thoughts", _listing('{"type":"reasoning","summary":[', lambda i: '{"type":"summary_text","text":"a"}', "]}")),
)  # fmt: skip


_IN_MANY = ("as properties", "as an enum")  # maps that also stand in each member of a long list


def _within(example: Any, place: Place, shape: Shape) -> bytes:
    """The whole body."""
    # The innermost of the lists around it is as long as it may be; those around that hold one.
    outer = next((min(shape.outer, longest) for _, name, longest in place.steps if name), 1)
    data, remaining = shape.inner(outer), outer
    for step, name, _ in place.steps[:-1] if isinstance(example, dict) else place.steps:
        if name:
            data = b"[" + b",".join([data] * remaining) + b"]"
            remaining = 1
        else:
            data = step(data)
    if not isinstance(example, dict) or not place.steps:
        return data
    field = place.path[1:].partition(".")[0].partition("[")[0].partition("{")[0]
    short = {name: value for name, value in _SHORT.items() if name in example}
    return _with(example | short, field, data)


def _with(members: dict[str, Any], name: str, value: bytes) -> bytes:
    """An object of these members, and one more, which is JSON already."""
    others = {key: member for key, member in members.items() if key != name}
    begin = msgspec.json.encode(others)[:-1]
    return begin + (b"," if others else b"") + json.dumps(name).encode() + b":" + value + b"}"
