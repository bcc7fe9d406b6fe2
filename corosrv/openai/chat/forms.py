"""Reads the form that an answer is to have: tools to choose from, and JSON."""

from __future__ import annotations

from typing import Any

from corosrv.chat import turns
from corosrv.chat.conversation import CallMode, CallPolicy, JsonFormat
from corosrv.chat.tools import check_count
from corosrv.errors import NotSupported, Refused
from corosrv.openai.chat import schema

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


def answer_format(body: schema.ChatBody) -> JsonFormat | None:
    """Raises Refused for two that contradict each other, and for one without its schema."""
    if body.json_schema is None and body.structured_outputs is None and body.response_format is None:
        return None
    native = None if body.json_schema is None else JsonFormat(body.json_schema, "json_schema")
    formats = [form for form in (native, _structured(body), _response_format(body.response_format)) if form]
    if len(formats) > 1:
        first, second = (form.param.partition(".")[0] for form in formats[:2])
        raise Refused(f"{first} and {second} contradict each other: send one of them", first)
    return formats[0] if formats else None


def _response_format(form: schema.ResponseFormat | None) -> JsonFormat | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        if form.value is not None:
            return JsonFormat(form.value, "response_format.value")
        return JsonFormat(form.schema, "response_format.schema")
    if form.json_schema is None:
        param = "response_format.json_schema"
        raise Refused(f"{param} is required: the schema, and a name", param, "missing_required_parameter")
    return JsonFormat(form.json_schema.schema, "response_format.json_schema.schema")


def _structured(body: schema.ChatBody) -> JsonFormat | None:
    outputs = body.structured_outputs
    if outputs is None:
        return None
    for name in ("json_object", "regex", "choice", "grammar", "structural_tag"):
        if getattr(outputs, name) is not None:
            param = f"structured_outputs.{name}"
            raise NotSupported(f"{param} is not offered here: a schema or a grammar is", param, "unsupported_parameter")
    return None if outputs.json is None else JsonFormat(outputs.json, "structured_outputs.json")
