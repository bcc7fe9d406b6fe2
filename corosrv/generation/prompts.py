"""Prompts as completions take them: a text, token ids, or a list of such."""

from __future__ import annotations

from typing import Any

from corosrv.errors import Refused
from corosrv.http.body import check_text
from corosrv.jobs import Prompt, Text, Tokens


def prompts(value: str | list[Any], param: str, most: int) -> tuple[Prompt, ...]:
    """One text, one list of ids, or at most `most` of either. Raises Refused, which names the place."""
    if isinstance(value, str):
        return (Text(check_text(value, param)),)
    if not value:
        raise Refused(f"{param} must not be an empty list", param)
    if _are_ids(value):
        return (Tokens(tuple(value)),)
    if len(value) > most:
        raise Refused(f"{param}: at most {most} in one request, not {len(value)}", param)
    return tuple(_prompt(one, f"{param}[{i}]") for i, one in enumerate(value))


def _prompt(value: Any, param: str) -> Prompt:
    if isinstance(value, str):
        return Text(check_text(value, param))
    if isinstance(value, list) and value and _are_ids(value):
        return Tokens(tuple(value))
    raise Refused(f"{param} must be a string or a list of token ids", param)


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)
