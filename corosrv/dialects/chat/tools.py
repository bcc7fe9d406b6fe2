"""Checks the tools that a request offers, in the one form that templates and grammars know."""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from corosrv.base.errors import Refused
from corosrv.dialects.chat.conversation import ToolPlaces

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The schema of a tool without one; llama-server gives the template the same.
NO_ARGUMENTS = {"type": "object", "properties": {}}

Tool = dict[str, Any]


def check_count(tools: Sized, param: str = "tools") -> None:
    """Raises Refused for too many tools. To be called before any of them is looked at: there may be 100,000."""
    if len(tools) > MAX_TOOLS:
        raise Refused(f"{param}: at most {MAX_TOOLS}, not {len(tools)}", param)


def checked(tools: Sequence[Tool], places: ToolPlaces) -> tuple[Tool, ...]:
    """Returns the tools with every member filled in. Raises Refused for too many, bad names, and duplicates."""
    check_count(tools)
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name, param = name_of(tool), places.name.format(number)
        if not _NAME.fullmatch(name):
            raise Refused(f"{param} must be of 1 to 64 letters, digits, _ and -", param)
        if name in names:
            raise Refused(f"{param}: there is another tool of the name '{name}'", param)
        names.add(name)
    return tuple(map(_complete, tools))


def _complete(tool: Tool) -> Tool:
    function = {
        "name": name_of(tool),
        "description": tool["function"].get("description") or "",
        "parameters": tool["function"].get("parameters") or NO_ARGUMENTS,
    }
    return {"type": "function", "function": function}


def name_of(tool: Tool) -> str:
    return str(tool["function"]["name"])


def parameters_of(tool: Tool) -> Any:
    """Returns the schema of a checked tool's arguments."""
    return tool["function"]["parameters"]
