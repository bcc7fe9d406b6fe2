"""The tools of a response: functions, those of namespaces under names of their own, and what clients add unasked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.dialects.chat import turns
from corosrv.dialects.chat.tools import check_count
from corosrv.dialects.openai.responses import schema

# OpenAI's own servers run these, and agents offer them whether their user wants it or not. A model that may choose
# chooses among the functions beside them; where there are none, a search is what was asked for, and is refused.
_ADDED_UNASKED = frozenset(("web_search", "web_search_preview", "image_generation", "tool_search"))


@dataclass(frozen=True, slots=True)
class FunctionTools:
    """Functions that the model may call, and what the answer says of them.

    `origins` has the namespace and the name of a function by the name under which the model calls it.
    """

    functions: tuple[dict[str, Any], ...]
    origins: Mapping[str, tuple[str, str]]
    echo: tuple[schema.Tool, ...]


def read_tools(tools: list[schema.Tool]) -> FunctionTools:
    """Makes the functions that a request's tools stand for. Raises Refused, which names the place."""
    check_count(tools)
    placed_tools = [(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    if any(tool.type in ("function", "namespace") for tool in tools):
        placed_tools = [(param, tool) for param, tool in placed_tools if tool.type not in _ADDED_UNASKED]
    functions, origins = list[dict[str, Any]](), dict[str, tuple[str, str]]()
    for param, tool in placed_tools:
        if tool.type == "namespace":
            namespace = _name(tool, param)
            for name, function in _functions(tool, namespace, param):
                origins[function["function"]["name"]] = (namespace, name)
                functions.append(function)
        else:
            functions.append(_function(tool, param))
    return FunctionTools(tuple(functions), origins, tuple(tool for _, tool in placed_tools))


def called(namespace: str | None, name: str) -> str:
    """Returns the name under which the model calls a function."""
    return name if namespace is None else f"{namespace}__{name}"


def _functions(space: schema.Tool, namespace: str, param: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each function with the name that it has in its namespace."""
    check_count(space.tools or (), f"{param}.tools")
    for i, tool in enumerate(space.tools or ()):
        function = _function(tool, f"{param}.tools[{i}]", namespace)
        yield str(tool.name), function


def _function(tool: schema.Tool, param: str, namespace: str | None = None) -> dict[str, Any]:
    if tool.type != "function":
        raise NotSupported(f"{param}.type: only 'function' is offered here, not {tool.type[:40]!r}", f"{param}.type")
    return turns.tool(called(namespace, _name(tool, param)), tool.description, tool.parameters)


def _name(tool: schema.Tool, param: str) -> str:
    if tool.name is None:
        raise Refused(f"{param}.name is required", f"{param}.name", "missing_required_parameter")
    return tool.name
