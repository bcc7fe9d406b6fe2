"""Dumps models of pydantic, and other objects with such a method, without importing their packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any


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
