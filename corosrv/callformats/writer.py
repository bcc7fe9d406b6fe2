"""Writes calls in a model's own format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corosrv.callformats.description import ArgumentRow, CallField, CallFormat, Notation, Spelling

_NO_ID = "call00001"
_PYTHON = {True: "True", False: "False", None: "None"}


def write_call(form: CallFormat, name: str, arguments: Mapping[str, Any] | str, id: str = _NO_ID) -> str:
    """Writes one call as an answer has it. A text for arguments, which was cut off, is written as it came."""
    fields = {
        CallField.NAME: name,
        CallField.ID: id,
        CallField.INDEX: str(form.first_index),
        CallField.ARGUMENTS: arguments if isinstance(arguments, str) else write_arguments(form, arguments),
    }
    inner = (*form.inner, "")
    content = "".join(fields[field] + text for field, text in zip(form.fields, inner, strict=True))
    return f"{form.start}{content}{form.end}"


def write_arguments(form: CallFormat, arguments: Mapping[str, Any]) -> str:
    if form.arguments is None:
        return to_json(arguments)
    if isinstance(form.arguments, Notation):
        return in_notation(dict(arguments), form.arguments)
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
        return f"{members.quote}{value}{members.quote}"
    if isinstance(value, (dict, list)):
        return to_json(value)
    if members.constants is Spelling.PYTHON and (value is None or isinstance(value, bool)):
        return _PYTHON[value]
    return to_json(value)


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


def json_type(value: Any) -> str:
    """Returns the type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (dict, "object"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "number")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
