"""The tools that a request offers, checked, in the one form that templates and grammars know."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corosrv.errors import Refused
from corosrv.http.body import check_text

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Of a tool that says nothing of its arguments: llama-server tells the template the same.
NO_ARGUMENTS = {"type": "object", "properties": {}}

Tool = dict[str, Any]


def tool(name: Any, description: Any, parameters: Any, param: str, schema_param: str) -> Tool:
    """One tool in OpenAI's form. Raises Refused; `param`: where it stands, `schema_param`: where its schema does."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(f"{param}.name must be of 1 to 64 letters, digits, _ and -", f"{param}.name")
    if not isinstance(description, (str, type(None))):
        raise Refused(f"{param}.description must be a string", f"{param}.description")
    if not isinstance(parameters, (dict, type(None))):
        raise Refused(f"{schema_param} must be a JSON schema, as an object", schema_param, "invalid_schema")
    function = {
        "name": name,
        "description": check_text(description or "", f"{param}.description"),
        "parameters": parameters or NO_ARGUMENTS,
    }
    return {"type": "function", "function": function}


def offered(tools: Sequence[Tool], param: str) -> tuple[Tool, ...]:
    """All tools of a request. Raises Refused for too many, and for two of one name."""
    check_count(tools, param)
    names: set[str] = set()
    for number, one in enumerate(tools):
        name = name_of(one)
        if name in names:
            raise Refused(f"{param}[{number}]: there is another tool of the name '{name}'", f"{param}[{number}]")
        names.add(name)
    return tuple(tools)


def check_count(tools: Sequence[Any], param: str) -> None:
    """Raises Refused for more than are taken; before each is looked at."""
    if len(tools) > MAX_TOOLS:
        raise Refused(f"{param}: at most {MAX_TOOLS} tools, not {len(tools)}", param)


def name_of(one: Mapping[str, Any]) -> str:
    return str(one["function"]["name"])


def parameters_of(one: Mapping[str, Any]) -> Any:
    return one["function"]["parameters"]
