"""Responses, the way in: bodies to calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
    Tool,
    ToolPlaces,
    Turn,
    TurnList,
    allowed_tools,
    newest_turns,
)
from corosrv.dialects.chat.prepare import Parser, prepare
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.native import with_triggers
from corosrv.dialects.openai.responses import items, schema
from corosrv.dialects.openai.responses.answers import CompactionAnswer, ResponseAnswer
from corosrv.dialects.openai.responses.items import FunctionTools, read_tools
from corosrv.dialects.openai.responses.mcp_answers import McpAnswer, McpPlan
from corosrv.dialects.openai.responses.mcp_items import McpAccess, McpToolbox, approved_calls, known_lists
from corosrv.dialects.openai.responses.store import Item, Shelf, Stored, output_items
from corosrv.dialects.openai.responses.stored_images import read_images
from corosrv.dialects.openai.structured_fields import (
    RequestedFormat,
    format_of_outputs,
    priority_of,
    served_tier,
    with_grammar,
)
from corosrv.images.intake import ImageIntake

_PLACES = ToolPlaces("tools[{}].name", "tools[{}].parameters")
_NO_ACCESS = McpAccess((), 0.0)


def call(
    body: schema.ResponseBody,
    card: ModelCard,
    shelf: Shelf,
    find_vocabulary: Callable[[], Vocabulary],
    images: ImageIntake | None = None,
    access: McpAccess = _NO_ACCESS,
    answer_kind: type[ResponseAnswer] = ResponseAnswer,
) -> Call:
    """Checks a request for a response, which goes to the shelf unless told otherwise.

    One with tools of MCP servers has an McpAnswer, and a job that only checks the request: see mcp_rounds.

    Waits for images, and while a conversation that may be truncated is counted. Raises Refused.
    """
    items.check_include(body.include or (), items.LOGPROBS, items.IMAGE_URLS)
    if body.background and body.store is False:
        raise Refused("background: a response that is not stored cannot be read when it is ready", "background")
    earlier = Earlier()
    if body.conversation is not None or body.previous_response_id is not None:
        earlier = _earlier(body, shelf, images)
    turns, tools = _turns(body, earlier, shelf, images), read_tools(body.tools or [], access)
    choice, functions = body.tool_choice, tools.functions
    if isinstance(choice, schema.NamedTool) and choice.type == "allowed_tools":
        functions = _allowed(functions, choice)

    def translate(
        turns: tuple[Turn, ...], functions: tuple[Tool, ...], policy: CallPolicy, fits: bool = body.truncation != "auto"
    ) -> tuple[Job, Parser]:
        if not fits:
            room = ContextRoom(card.meta.get("n_ctx", 0), body.max_output_tokens, find_vocabulary().count)
            turns = newest_turns(
                turns, lambda turns: room.holds(translate(turns, functions, policy, True)[0].prompts[0])
            )
        asked = _conversation(body, turns, functions, policy, card)
        if body.grammar_lazy or body.preserved_tokens:
            asked = msgspec.structs.replace(asked, job=with_triggers(asked.job, body, find_vocabulary))
        return prepare(asked, card, find_vocabulary=find_vocabulary)

    policy = _tool_choice(body.tool_choice, tools.toolboxes)
    # What MCP servers have is not known yet: the request is checked without it.
    job, parser = translate(turns, functions, CallPolicy(CallMode.NONE) if tools.toolboxes else policy)
    options = AnswerOptions.from_fields(body, logprobs=items.LOGPROBS in (body.include or ()))
    is_stored = body.store is not False
    echo = _echo(body, tools, job, card, is_stored)
    has_items = isinstance(body.input, list)
    new_items = items.list_items(body.input, shelf) if is_stored or earlier.conversation or has_items else ()
    keep = shelf.put if is_stored else None
    if earlier.conversation:
        shelf.check_room(earlier.conversation, new_items, "conversation")
        keep = partial(_keep, shelf, is_stored, earlier.conversation, new_items)
    listed = (*earlier.items, *new_items) if is_stored or answer_kind is CompactionAnswer else ()
    if images is not None and is_stored:
        listed = tuple(map(items.without_urls, listed))
    answer = answer_kind(echo, parser, turns, keep, options, tools.origins, listed, tools.customs)
    if tools.toolboxes or has_items:
        context = (*earlier.items, *new_items)
        approved = approved_calls(context, turns, tools.toolboxes)
        if tools.toolboxes:
            plan = McpPlan(
                translate, turns, functions, tools.toolboxes, policy, _chosen_server(body.tool_choice),
                known_lists(context, tools.toolboxes), approved, body.max_tool_calls, body.max_output_tokens,
                access.timeout_s,
            )  # fmt: skip
            answer = McpAnswer(plan, echo, parser, turns, keep, options, tools.origins, listed, tools.customs)
    priority = body.priority if body.service_tier is None else priority_of(body)
    return Call(job, options.stream, answer, priority, card=card, ping_interval=body.sse_ping_interval)


_SUM_UP = (
    "Sum up our conversation so far, for yourself: you will go on from your summary and from my messages alone. Say "
    "what was asked, what was found and decided, with its names, numbers and paths as they were, and what is still to "
    "be done. Answer with the summary and nothing else."
)
_SUMMARY_TOKENS, _SUMMARY_PART = 1024, 4  # at most, and of the context


def compaction(
    body: schema.CompactBody,
    card: ModelCard,
    shelf: Shelf,
    find_vocabulary: Callable[[], Vocabulary],
    images: ImageIntake | None = None,
) -> Call:
    """Checks a request for a compaction: the model is to sum up the conversation. Raises as `call` does."""
    told = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or []
    if not told and body.previous_response_id is None:
        raise Refused("input is required, or previous_response_id", "input", "missing_required_parameter")
    asked = schema.ResponseBody(
        model=body.model,
        input=[*told, {"role": "user", "content": _SUM_UP}],
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        store=False,
        max_output_tokens=min(_SUMMARY_TOKENS, max(card.meta.get("n_ctx", 0) // _SUMMARY_PART, 1)),
        reasoning=schema.ReasoningOptions("none"),
    )
    return call(asked, card, shelf, find_vocabulary, images, answer_kind=CompactionAnswer)


def _keep(shelf: Shelf, is_stored: bool, conversation: str, new_items: tuple[Item, ...], stored: Stored) -> None:
    """Stores a response, and adds its input and output to its conversation, both or neither."""
    if is_stored:
        shelf.put(stored)
    if stored.response.status in ("completed", "incomplete"):
        shelf.add_turn(conversation, (*new_items, *output_items(stored.response)))


class Earlier(msgspec.Struct, frozen=True):
    """The conversation before a response's input, as turns and as items; `conversation`: the id of a stored one."""

    turns: tuple[Turn, ...] = ()
    items: tuple[Item, ...] = ()
    conversation: str = ""


def _earlier(body: schema.ResponseBody, shelf: Shelf, images: ImageIntake | None) -> Earlier:
    if body.conversation is not None:
        return _of_conversation(body, body.conversation, shelf, images)
    stored = shelf.get(str(body.previous_response_id), "previous_response_id")
    turns = read_images(stored.turns, images, "previous_response_id")
    return Earlier(turns, (*stored.input, *output_items(stored.response)))


def _of_conversation(
    body: schema.ResponseBody, conversation: str | schema.Reference, shelf: Shelf, images: ImageIntake | None
) -> Earlier:
    if body.previous_response_id is not None:
        words = "conversation and previous_response_id contradict each other: send one of them"
        raise Refused(words, "conversation", "mutually_exclusive_parameters")
    id = conversation if isinstance(conversation, str) else conversation.id
    kept, turns = items.decode_all(shelf.conversation(id, "conversation").items.values()), TurnList()
    if kept:
        items.add(kept, turns, shelf, images, "conversation")
    return Earlier(turns.all, tuple(kept), id)


def _turns(body: schema.ResponseBody, earlier: Earlier, shelf: Shelf, images: ImageIntake | None) -> tuple[Turn, ...]:
    """Returns the conversation so far, without instructions: they hold for one response only."""
    turns = TurnList(earlier.turns)
    items.add(body.input, turns, shelf, images)
    return turns.all


def _conversation(
    body: schema.ResponseBody, turns: tuple[Turn, ...], functions: tuple[Tool, ...], policy: CallPolicy, card: ModelCard
) -> Conversation:
    instructions: tuple[Turn, ...] = ()
    if body.instructions is not None:
        instructions = ({"role": "system", "content": body.instructions},)
    effort = _effort(body)
    prompt = Messages(
        instructions + turns,
        tools=functions,
        param="input",
        template_arguments={} if effort is None else {"reasoning_effort": effort},
    )
    job = fields.job(
        body, (prompt,), card.defaults, n_probs=_n_probs(body) if body.include or body.top_logprobs else -1
    )
    if body.max_output_tokens is not None:
        job = replace(job, max_tokens=body.max_output_tokens)
    job, form = with_grammar(job, _format(body), card)
    return Conversation(
        job,
        tool_choice=policy,
        parallel_calls=body.parallel_tool_calls is not False,
        answer_format=form,
        places=_PLACES,
        thinks=False if effort == "none" else None,
        thought_tokens=fields.thought_tokens(body),
        thought_message=fields.thought_message(body),
    )


def _n_probs(body: schema.ResponseBody) -> int:
    """Returns how many likely tokens are listed for each; -1 where none are asked for, not even the one that came."""
    if body.include is not None and items.LOGPROBS in body.include:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise Refused(f"top_logprobs is only allowed with include: ['{items.LOGPROBS}']", "top_logprobs")
    return -1


_CALLED = ("function", "custom")


def _tool_choice(choice: str | schema.NamedTool | None, toolboxes: Sequence[McpToolbox]) -> CallPolicy:
    if choice is None or isinstance(choice, str):
        return CallPolicy(CallMode(choice or "auto"))
    if choice.type == "mcp":
        if choice.server_label not in [box.label for box in toolboxes]:
            words = "tool_choice.server_label: tools has no MCP server of this label"
            raise Refused(words, "tool_choice.server_label")
        return CallPolicy(CallMode.REQUIRED, choice.name)
    if choice.type == "allowed_tools":
        return CallPolicy(CallMode(choice.mode or "auto"))
    if choice.type not in _CALLED:
        raise NotSupported(
            f"tool_choice.type: only 'function' and 'custom' are offered here, not {choice.type[:40]!r}",
            "tool_choice.type",
        )
    if choice.name is None:
        raise Refused("tool_choice.name is required", "tool_choice.name", "missing_required_parameter")
    return CallPolicy(CallMode.REQUIRED, choice.name)


def _allowed(functions: tuple[Tool, ...], choice: schema.NamedTool) -> tuple[Tool, ...]:
    """Returns the functions that the model may call. Raises Refused for others than functions."""
    param = "tool_choice.tools"
    if not choice.tools:
        raise Refused(f"{param} is required", param, "missing_required_parameter")
    for number, tool in enumerate(choice.tools):
        if tool.type not in _CALLED:
            words = f"{param}[{number}]: only functions and custom tools may be listed here"
            raise NotSupported(words, f"{param}[{number}]")
    return allowed_tools(functions, [tool.name or "" for tool in choice.tools], param)


def _chosen_server(choice: str | schema.NamedTool | None) -> str | None:
    """Returns the label of the MCP server whose tool the model has to call."""
    return choice.server_label if isinstance(choice, schema.NamedTool) and choice.type == "mcp" else None


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
    echo = {
        "model": card.id,
        "background": bool(body.background),
        "frequency_penalty": job.sampling.frequency_penalty,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": job.sampling.presence_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": body.reasoning or schema.ReasoningOptions(),
        "safety_identifier": body.safety_identifier,
        "service_tier": served_tier(body) if body.service_tier else "default",
        "store": is_stored,
        "temperature": job.sampling.temperature,
        "text": body.text if body.text and body.text.format else schema.TextOptions(schema.TextFormat("text")),
        "tool_choice": body.tool_choice or "auto",
        "tools": list(tools.echo),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": job.sampling.top_p,
        "truncation": body.truncation or "disabled",
    }
    if body.conversation is not None:
        id = body.conversation if isinstance(body.conversation, str) else body.conversation.id
        echo["conversation"] = schema.Reference(id)
    return echo
