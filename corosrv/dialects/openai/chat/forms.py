"""Reads the tools that an answer may call."""

from __future__ import annotations

from typing import Any

from corosrv.dialects.chat import turns
from corosrv.dialects.chat.conversation import CallMode, CallPolicy
from corosrv.dialects.chat.tools import check_count
from corosrv.dialects.openai.chat import schema

_POLICIES = {mode.value: CallPolicy(mode) for mode in CallMode}


def tools(body: schema.ChatBody) -> tuple[dict[str, Any], ...]:
    """Returns the tools that the model may call. Raises Refused for too many."""
    check_count(body.tools or ())
    functions = (tool.function for tool in body.tools or ())
    return tuple(turns.tool(function.name, function.description, function.parameters) for function in functions)


def tool_choice(body: schema.ChatBody) -> CallPolicy:
    choice = body.tool_choice
    if isinstance(choice, schema.NamedTool):
        return CallPolicy(CallMode.REQUIRED, choice.function.name)
    return _POLICIES[choice or "auto"]
