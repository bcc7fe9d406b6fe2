"""Converts Python values to JSON values. Knows models of pydantic and the like by their methods, without an import."""

from __future__ import annotations

import base64
import dataclasses
import decimal
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import date, datetime, time
from enum import Enum
from itertools import islice
from typing import Any

from corosrv.base.errors import OutputFailed
from corosrv.workers.worker.signatures.shapes import Coder, coder_of


def dump_of(value: Any) -> Callable[[], Any] | None:
    """Returns the function that dumps a model to plain values, or None. It may rename, omit and add fields."""
    if isinstance(value, type | Mapping):
        return None
    # Of its class: an object may have an answer to any name.
    dump = getattr(type(value), "model_dump", None) or getattr(type(value), "dict", None)
    return (lambda: _with_secrets_kept(value, dump(value))) if callable(dump) else None


def _with_secrets_kept(model: Any, dumped: Any) -> Any:
    """Restores fields that hold secrets: a dump takes these apart like any dataclass."""
    if not isinstance(dumped, dict):
        return dumped
    fields = {name: getattr(model, name, None) for name in dumped if isinstance(name, str)}
    return dumped | {name: value for name, value in fields.items() if _holds_secret(value)}


def _holds_secret(value: Any) -> bool:
    if hasattr(value, "get_secret_value"):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_secret, value.values()))
    if isinstance(value, list | tuple | Set):
        return any(map(_holds_secret, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_holds_secret(getattr(value, field.name)) for field in dataclasses.fields(value))
    names = getattr(type(value), "model_fields", ())
    return any(_holds_secret(getattr(value, name, None)) for name in names)


Place = list[str | int]  # keys and indices that lead to a value
PutFile = Callable[[Place, Any], None]  # takes a file that stands at this place

_CONTAINERS = (dict, list, tuple, set)
MAX_DEPTH = 200  # objects and arrays within each other; readers of JSON refuse more


def is_file(value: Any) -> bool:
    """Returns whether a value is sent as a file: a path, or a file that is open for reading."""
    return isinstance(value, os.PathLike) or (callable(getattr(value, "read", None)) and not isinstance(value, type))


def jsonable(value: Any, put_file: PutFile) -> Any:
    """Converts a value to JSON; passes its files to `put_file` and leaves null in their place.

    JSON has neither NaN nor infinity: they become null, as in JavaScript. Bytes become base64. Raises OutputFailed for
    what has no JSON form, and names its place.
    """
    return _Walk(put_file).value(value, [])


class _Walk:
    """Converts one value. `place` is one list that grows and shrinks, so that only files and faults cost a copy."""

    def __init__(self, put_file: PutFile) -> None:
        self._put_file = put_file

    def value(self, value: Any, place: Place) -> Any:
        match value:
            case None | bool():
                return value
            case Enum():
                return self.value(value.value, place)
            case str():
                return _text(value)
            case int():
                return int(value)
            case float():
                return float(value) if math.isfinite(value) else None
        if is_file(value):
            self._put_file(list(place), value)
            return None
        if (scalar := _scalar(value)) is not None:
            return scalar
        return self._compound(value, place)

    def _compound(self, value: Any, place: Place) -> Any:
        if len(place) >= MAX_DEPTH:
            raise OutputFailed(f"the output is nested deeper than {MAX_DEPTH} levels, or holds itself")
        if (coder := _coder_of(value)) is not None:
            return self.value(coder.encode(value), place)
        if (dump := dump_of(value)) is not None:
            return self.value(dump(), place)
        if (fields := _fields(value)) is not None:
            return {key: self._at(key, member, place) for key, member in fields}
        if isinstance(value, Iterable) and isinstance(value, list | tuple | Set | Iterator):
            return [self._at(index, member, place) for index, member in enumerate(value)]
        if callable(to_list := getattr(value, "tolist", None)):  # arrays and numbers of numpy, tensors
            return self.value(to_list(), place)
        where = f" at {_dotted(place)}" if place else ""
        raise OutputFailed(f"the output{where} is of type {type(value).__name__}, which has no JSON form")

    def _at(self, key: str | int, member: Any, place: Place) -> Any:
        place.append(key)
        result = self.value(member, place)
        place.pop()
        return result


def _text(text: str) -> str:
    """Replaces half surrogates, as in file names that are not UTF-8: JSON cannot hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def _scalar(value: Any) -> str | None:
    match value:
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID():
            return str(value)
    return str(value) if hasattr(value, "get_secret_value") else None


def _fields(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Returns the members of a value that becomes an object; None for other values."""
    if isinstance(value, Mapping):
        return ((_key(key), member) for key, member in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return None


def _coder_of(value: Any) -> Coder | None:
    return None if type(value) in _CONTAINERS else coder_of(type(value))


def _key(key: Any) -> str:
    match key:
        case Enum():
            return _key(key.value)
        case str():
            return _text(key)
        case None | bool():
            return {None: "null", True: "true", False: "false"}[key]
        case int() | float():
            return str(key)
    raise OutputFailed(f"the output has an object with a key of type {type(key).__name__}, where JSON has only texts")


def _dotted(place: Place) -> str:
    keys = ".".join(str(key)[:40] for key in islice(place, 8))
    return keys + ("..." if len(place) > 8 else "")
