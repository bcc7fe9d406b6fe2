"""Responses, the way in: bodies to calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, Messages, ModelCard, Vocabulary
from corosrv.dialects.chat.conversation import (
    CallMode,
    CallPolicy,
    ContextRoom,
    Conversation,
    JsonFormat,
    ToolPlaces,
    Turn,
    TurnList,
    newest_turns,
)
from corosrv.dialects.chat.parser import Parser
from corosrv.dialects.chat.prepare import prepare
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.thoughts import thought_message, thought_tokens
from corosrv.dialects.openai.responses import items, schema
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.items import FunctionTools, read_tools
from corosrv.dialects.openai.responses.store import Shelf, read_images
from corosrv.dialects.openai.structured_fields import RequestedFormat, format_of_outputs, with_grammar
from corosrv.images.intake import ImageIntake

_PLACES = ToolPlaces("tools[{}].name", "tools[{}].parameters")
_NOTHING_TO_INCLUDE = frozenset(
    ("reasoning.encrypted_content", "code_interpreter_call.outputs", "computer_call_output.output.image_url",
     "file_search_call.results", "message.input_image.image_url", "web_search_call.action.sources",
     "web_search_call.results")
)  # fmt: skip


def call(
    body: schema.ResponseBody,
    defaults: fields.Defaults,
    card: ModelCard,
    shelf: Shelf,
    find_vocabulary: Callable[[], Vocabulary],
    images: ImageIntake | None = None,
) -> Call:
    """Checks a request for a response, which goes to the shelf unless told otherwise.

    Waits for images, and while a conversation that may be truncated is counted. Raises Refused.
    """
    _check_include(body.include or ())
    if body.background and body.store is False:
        raise Refused("background: a response that is not stored cannot be read when it is ready", "background")
    turns, tools = _turns(body, shelf, images), read_tools(body.tools or [])

    def translate(turns: tuple[Turn, ...]) -> tuple[Job, Parser]:
        return prepare(_conversation(body, turns, tools, defaults, card), card)

    kept = turns
    if body.truncation == "auto":
        room = ContextRoom(card.meta.get("n_ctx", 0), body.max_output_tokens, find_vocabulary().count)
        kept = newest_turns(turns, lambda turns: room.holds(translate(turns)[0].prompts[0]))
    job, parser = translate(kept)
    options = AnswerOptions.from_fields(body)
    is_stored = body.store is not False
    echo = _echo(body, tools, job, card, is_stored)
    keep = shelf.put if is_stored else None
    listed = _items(body, shelf) if is_stored else ()
    answer = ResponseAnswer(echo, parser, turns, keep, options, tools.origins, listed)
    return Call(job, options.stream, answer, body.priority)


def _check_include(names: Iterable[str]) -> None:
    """Refuses what cannot be included. What tools and inputs would bring that do not exist here asks for nothing; nor
    do encrypted thoughts: thoughts come as they are, and may be sent back so."""
    for i, name in enumerate(names):
        if name not in _NOTHING_TO_INCLUDE:
            raise NotSupported(f"include[{i}]: {name[:60]!r} is not offered here", "include", "unsupported_parameter")


def _turns(body: schema.ResponseBody, shelf: Shelf, images: ImageIntake | None) -> tuple[Turn, ...]:
    """Returns the conversation so far, without instructions: they hold for one response only."""
    earlier: tuple[Turn, ...] = ()
    if body.previous_response_id is not None:
        earlier = shelf.get(body.previous_response_id, "previous_response_id").turns
        earlier = read_images(earlier, images, "previous_response_id")
    turns = TurnList(earlier)
    items.add(body.input, turns, shelf, images)
    return turns.all


def _items(body: schema.ResponseBody, shelf: Shelf) -> tuple[dict[str, Any], ...]:
    """Returns the items of the conversation so far, as they can be listed."""
    earlier: tuple[dict[str, Any], ...] = ()
    if body.previous_response_id is not None:
        stored = shelf.get(body.previous_response_id, "previous_response_id")
        earlier = (*stored.input, *map(msgspec.to_builtins, stored.response.output))
    return earlier + items.list_items(body.input, shelf)


def _conversation(
    body: schema.ResponseBody,
    turns: tuple[Turn, ...],
    tools: FunctionTools,
    defaults: fields.Defaults,
    card: ModelCard,
) -> Conversation:
    instructions: tuple[Turn, ...] = ()
    if body.instructions is not None:
        instructions = ({"role": "system", "content": body.instructions},)
    effort = _effort(body)
    prompt = Messages(
        instructions + turns,
        tools=tools.functions,
        param="input",
        template_arguments={} if effort is None else {"reasoning_effort": effort},
    )
    job = fields.job(body, (prompt,), defaults)
    if body.max_output_tokens is not None:
        job = replace(job, max_tokens=body.max_output_tokens)
    job, form = with_grammar(job, _format(body), card)
    return Conversation(
        job,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_calls=body.parallel_tool_calls is not False,
        answer_format=form,
        places=_PLACES,
        thinks=False if effort == "none" else None,
        thought_tokens=thought_tokens(body),
        thought_message=thought_message(body),
    )


def _tool_choice(choice: str | schema.NamedTool | None) -> CallPolicy:
    if choice is None or isinstance(choice, str):
        return CallPolicy(CallMode(choice or "auto"))
    if choice.type != "function":
        raise NotSupported(
            f"tool_choice.type: only 'function' is offered here, not {choice.type[:40]!r}", "tool_choice.type"
        )
    if choice.name is None:
        raise Refused("tool_choice.name is required", "tool_choice.name", "missing_required_parameter")
    return CallPolicy(CallMode.REQUIRED, choice.name)


def _format(body: schema.ResponseBody) -> RequestedFormat | None:
    form, other = _text_format(body.text), format_of_outputs(body.structured_outputs)
    if form is not None and other is not None:
        raise Refused("text.format and structured_outputs contradict each other: send one of them", "text.format")
    return form or other


def _text_format(text: schema.TextOptions | None) -> JsonFormat | None:
    form = text.format if text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return JsonFormat(None, "text.format")
    if form.schema is None:
        raise Refused("text.format.schema is required", "text.format.schema", "missing_required_parameter")
    return JsonFormat(form.schema, "text.format.schema")


def _effort(body: schema.ResponseBody) -> str | None:
    return body.reasoning.effort if body.reasoning is not None else None


def _echo(
    body: schema.ResponseBody, tools: FunctionTools, job: Job, card: ModelCard, is_stored: bool
) -> dict[str, Any]:
    """Returns what a response repeats of its request."""
    return {
        "model": card.id,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": body.reasoning or schema.ReasoningOptions(),
        "store": is_stored,
        "temperature": job.sampling.temperature,
        "text": body.text if body.text and body.text.format else schema.TextOptions(schema.TextFormat("text")),
        "tool_choice": body.tool_choice or "auto",
        "tools": list(tools.echo),
        "top_p": job.sampling.top_p,
        "truncation": body.truncation or "disabled",
    }
