"""Parses the bodies of Anthropic's messages to calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Messages, ModelCard
from corosrv.dialects.anthropic import content, schema
from corosrv.dialects.anthropic.answers import MessageAnswer
from corosrv.dialects.chat import turns
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat, ToolPlaces
from corosrv.dialects.chat.prepare import prepare
from corosrv.dialects.chat.tools import check_count
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import Call
from corosrv.images.intake import ImageIntake

_PLACES = ToolPlaces("tools[{}].name", "tools[{}].input_schema")
_CHOICES = {"auto": CallMode.AUTO, "any": CallMode.REQUIRED, "tool": CallMode.REQUIRED, "none": CallMode.NONE}


def call(
    body: schema.PromptBody,
    defaults: fields.Defaults,
    card: ModelCard,
    request_id: str,
    images: ImageIntake | None = None,
) -> Call:
    """Checks a request and makes its job and its answer; waits for images. Raises Refused, naming the parameter."""
    job, parser = prepare(_conversation(body, defaults, images), card)
    stream = bool(body.stream)
    # A stream begins with the number of the prompt's tokens, which the first progress chunk has.
    answer = MessageAnswer(card, parser, request_id, omits_thoughts=_omits_thoughts(body.thinking))
    return Call(replace(job, tells_progress=stream), stream, answer, body.priority)


def _conversation(body: schema.PromptBody, defaults: fields.Defaults, images: ImageIntake | None) -> Conversation:
    job = fields.job(body, (_prompt(body, images),), defaults)
    choice = body.tool_choice
    return Conversation(
        replace(job, stop=job.stop + fields.stops(body.stop_sequences, "stop_sequences")),
        tool_choice=_tool_choice(choice),
        parallel_calls=choice is None or not choice.disable_parallel_tool_use,
        answer_format=_format(body),
        places=_PLACES,
        thinks=_thinks(body.thinking),
        thought_tokens=body.thinking.budget_tokens if body.thinking else None,
    )


def _prompt(body: schema.PromptBody, images: ImageIntake | None) -> Messages:
    history = content.turns(body, images)
    # A last message of the assistant is the beginning of the answer, which the model continues.
    is_begun = history[-1]["role"] == "assistant"
    if is_begun and "tool_calls" in history[-1]:
        raise Refused("messages: a tool_use at the end needs its tool_result in a user message", "messages")
    check_count(body.tools or ())
    tools = tuple(_tool(tool, i) for i, tool in enumerate(body.tools or ()))
    return Messages(history, tools=tools, add_generation_prompt=not is_begun, continue_final=is_begun)


def _tool(tool: schema.Tool, number: int) -> dict[str, Any]:
    param = f"tools[{number}]"
    if tool.type not in (None, "custom"):
        raise NotSupported(f"{param}.type: only 'custom' is offered here, not {tool.type[:40]!r}", f"{param}.type")
    if tool.input_schema is None:
        raise Refused(f"{param}.input_schema is required", f"{param}.input_schema", "missing_required_parameter")
    return turns.tool(tool.name, tool.description, tool.input_schema)


def _tool_choice(choice: schema.ToolChoice | None) -> CallPolicy:
    if choice is None:
        return CallPolicy()
    if choice.type == "tool" and choice.name is None:
        raise Refused("tool_choice.name is required", "tool_choice.name", "missing_required_parameter")
    return CallPolicy(_CHOICES[choice.type], choice.name if choice.type == "tool" else None)


def _format(body: schema.PromptBody) -> JsonFormat | None:
    if body.output_config is not None and body.output_config.format is not None:
        return JsonFormat(body.output_config.format.schema, "output_config.format.schema")
    if body.output_format is not None:
        return JsonFormat(body.output_format.schema, "output_format.schema")
    return None


def _omits_thoughts(thinking: schema.ThinkingOptions | None) -> bool:
    return thinking is not None and thinking.display == "omitted"


def _thinks(thinking: schema.ThinkingOptions | None) -> bool | None:
    if thinking is None or thinking.type == "adaptive":
        return None
    return thinking.type == "enabled"
