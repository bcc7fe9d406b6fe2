"""Writes calls in a model's own format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from corosrv.formats.callformats.description import ArgumentRow, CallField, CallFormat, ElementTree, Notation, Spelling

_NO_ID = "call00001"
_PYTHON = {True: "True", False: "False", None: "None"}


class WrittenCall(NamedTuple):
    """A call that is to be written. A text for arguments, which was cut off, is written as it came."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = _NO_ID


def write_calls(form: CallFormat, calls: Sequence[WrittenCall]) -> str:
    """Writes the calls of an answer as it has them; in a format for one call, one answer's after the other."""
    contents = [_content(form, call, number) for number, call in enumerate(calls)]
    joint = f"{form.end}\n{form.start}" if form.is_single else form.joint
    return f"{form.start}{joint.join(contents)}{form.end}"


def _content(form: CallFormat, call: WrittenCall, number: int) -> str:
    """Returns a call from its first field to its last."""
    fields = {
        CallField.NAME: call.name,
        CallField.ID: call.id,
        CallField.INDEX: str(form.first_index + (0 if form.is_single else number)),
        CallField.ARGUMENTS: (
            call.arguments if isinstance(call.arguments, str) else write_arguments(form, call.arguments)
        ),
    }
    inner = (*form.inner, "")
    return "".join(fields[field] + text for field, text in zip(form.fields, inner, strict=True))


def write_arguments(form: CallFormat, arguments: Mapping[str, Any]) -> str:
    if form.arguments is None:
        return to_json(arguments)
    if isinstance(form.arguments, Notation):
        return in_notation(dict(arguments), form.arguments)
    if isinstance(form.arguments, ElementTree):
        return in_elements(dict(arguments), form.arguments)
    members = form.arguments
    names = sorted(arguments) if members.sorts_keys else list(arguments)
    if not names:
        return ""
    pairs = (
        f"{name}{members.key_end}{members.type_word(json_type(arguments[name]))}{members.value_start}"
        f"{_value(arguments[name], members)}{members.value_end}"
        for name in names
    )
    return members.opening + members.between.join(pairs) + members.closing


def _value(value: Any, members: ArgumentRow) -> str:
    if isinstance(value, str):
        return _quoted(value, members.quote)
    if isinstance(value, (dict, list)):
        return to_json(value)
    if members.constants is Spelling.PYTHON and (value is None or isinstance(value, bool)):
        return _PYTHON[value]
    return to_json(value)


def _quoted(text: str, quote: str) -> str:
    """Writes a string between quotes, escaped as Python has it; without quotes it stands as it is."""
    content = to_json(text)[1:-1] if quote else text
    if quote == "'":
        content = content.replace('\\"', '"').replace("'", "\\'")
    return f"{quote}{content}{quote}"


def in_notation(value: Any, notation: Notation) -> str:
    """Writes a value as JSON with other quotes."""
    if isinstance(value, str):
        return f"{notation.quote}{value}{notation.quote}"
    if isinstance(value, dict):
        names = sorted(value) if notation.sorts_keys else value
        return "{" + ",".join(f"{name}:{in_notation(value[name], notation)}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(in_notation(part, notation) for part in value) + "]"
    return to_json(value)


def in_elements(value: Any, tree: ElementTree) -> str:
    """Writes a value as elements in elements. Members of objects that are null are left out."""
    if isinstance(value, dict):
        members = [(name, part) for name, part in value.items() if part is not None]
    elif isinstance(value, list):
        members = [(tree.item, part) for part in value]
    else:
        return value if isinstance(value, str) else to_json(value)
    return "".join(f"{tree.mark}<{name}>{in_elements(part, tree)}{tree.mark}</{name}>" for name, part in members)


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (dict, "object"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "number")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
