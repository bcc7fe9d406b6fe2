"""Resolves pointers into a schema document. Never fetches another document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from corosrv.base.errors import InvalidSchema


def step(place: str, *steps: str) -> str:
    """Returns the pointer that leads from `place` along the steps."""
    return "/".join((place, *(name.replace("~", "~0").replace("/", "~1") for name in steps)))


def resolve(document: Any, ref: str, place: str, param: str) -> tuple[Any, str]:
    """Returns the schema that a `$ref` at `place` points to, and its place. Raises InvalidSchema."""
    at = step(place, "$ref")
    if not ref.startswith("#"):
        raise InvalidSchema(at, f"'{_short(ref)}' lies outside of this schema, and is not fetched", param)
    if ref != "#" and not ref.startswith("#/"):
        raise InvalidSchema(at, f"'{_short(ref)}' is no pointer; '#/$defs/name' would be one", param)
    target, reached = document, "#"
    for name in unquote(ref).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isascii() and key.isdigit() and int(key[:6]) < len(target):
            target = target[int(key[:6])]
        else:
            raise InvalidSchema(at, f"'{_short(ref)}' points to nothing", param)
        reached = step(reached, key)
    if not isinstance(target, (dict, bool)):
        raise InvalidSchema(at, f"'{_short(ref)}' does not point to a schema", param)
    return target, reached


def _short(ref: str) -> str:
    return ref if len(ref) <= 80 else f"{ref[:80]}..."
