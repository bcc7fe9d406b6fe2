"""What form an answer is to have: tools to choose from, and JSON."""

from __future__ import annotations

from typing import Any

from corosrv.chat import turns
from corosrv.chat.conversation import Choice, JsonFormat, ToolChoice
from corosrv.errors import Refused
from corosrv.openai.chat import schema


def tools(body: schema.ChatBody) -> tuple[dict[str, Any], ...]:
    """The tools that are offered."""
    functions = (one.function for one in body.tools or ())
    return tuple(turns.tool(function.name, function.description, function.parameters) for function in functions)


def tool_choice(body: schema.ChatBody) -> ToolChoice:
    chosen = body.tool_choice
    if isinstance(chosen, schema.NamedTool):
        return ToolChoice(Choice.REQUIRED, chosen.function.name)
    return ToolChoice(Choice(chosen or "auto"))


def answer_format(body: schema.ChatBody) -> JsonFormat | None:
    """Raises Refused for two that contradict each other, and for one without its schema."""
    form = body.response_format
    is_json = form is not None and form.type != "text"
    if body.json_schema is not None:
        if is_json:
            raise Refused("json_schema and response_format contradict each other: send one of them", "json_schema")
        return JsonFormat(body.json_schema, "json_schema")
    if form is None or not is_json:
        return None
    if form.type == "json_object":
        return JsonFormat(form.schema, "response_format.schema")
    if form.json_schema is None:
        param = "response_format.json_schema"
        raise Refused(f"{param} is required: the schema, and a name", param, "missing_required_parameter")
    return JsonFormat(form.json_schema.schema, "response_format.json_schema.schema")
