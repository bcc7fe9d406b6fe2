"""Pydantic's models, and whatever else turns itself into plain values. No such package is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any


def dump_of(value: Any) -> Callable[[], Any] | None:
    """What makes plain values of it, if it can: its author may rename, leave out and add fields on the way."""
    if isinstance(value, type | Mapping):
        return None
    # Of its class: an object may have an answer to any name.
    dump = getattr(type(value), "model_dump", None) or getattr(type(value), "dict", None)
    return (lambda: _with_secrets_kept(value, dump(value))) if callable(dump) else None


def _with_secrets_kept(model: Any, dumped: Any) -> Any:
    """A dump takes secrets apart, as it does any dataclass; fields that hold some stay as they were."""
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
