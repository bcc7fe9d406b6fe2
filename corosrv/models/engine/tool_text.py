"""Writes into the messages what a template would drop: tools, calls, results, system turns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container
from typing import Any

from corosrv.formats.callformats.description import ArgumentRow, CallFormat, Spelling
from corosrv.formats.callformats.known import HERMES
from corosrv.formats.callformats.writer import WrittenCall, write_calls
from corosrv.models.engine.traits import Traits

Message = dict[str, Any]

_INTRODUCTION = (
    "# Tools\n\nYou may call functions to answer. Each line between <tools> and </tools> describes one, with a JSON "
    "schema of its arguments:\n<tools>\n{tools}\n</tools>\n\nTo call one, write its name and its arguments {how}:\n"
    "{example}"
)
_HERMES_EXAMPLE = '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'


def write_tools(
    messages: list[Message], tools: list[dict[str, Any]], traits: Traits
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Returns messages and tools that the template shows in full. The strings in them are left as they are."""
    if not traits.shows_tools and tools:
        messages = _with_system_words(messages, _introduction(tools, traits.call_format))
        tools = []
    if traits.shows_calls and not traits.manner.takes_text:
        messages = _without_cut_calls(messages, traits)
    messages = [_adapt_calls(message, traits) for message in messages]
    if not traits.shows_results:
        messages = _results_as_turns(messages)
    if not traits.has_system:
        messages = _without_system(messages)
    return messages, tools


def _introduction(tools: list[dict[str, Any]], form: CallFormat) -> str:
    lines = "\n".join(map(_json, tools))
    if form == HERMES:
        how = "as a JSON object between <tool_call> and </tool_call>"
        return _INTRODUCTION.format(tools=lines, how=how, example=_HERMES_EXAMPLE)
    example = write_calls(form, [WrittenCall("function_name", {"argument_name": "value"})])
    return _INTRODUCTION.format(tools=lines, how="in this form", example=example)


def _with_system_words(messages: list[Message], words: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def _without_cut_calls(messages: list[Message], traits: Traits) -> list[Message]:
    """Writes calls whose arguments are no object into the text, for a template that takes objects alone.

    These are calls that were cut off in the middle. All calls of such a message go, so that their order stays, and
    their results become turns of the user.
    """
    written_ids: set[str] = set()
    remaining = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if any(isinstance(call["function"]["arguments"], str) for call in calls):
            written_ids |= {call["id"] for call in calls}
            message = _with_calls_in_text(message, traits.call_format)
        remaining.append(message)
    return _results_as_turns(remaining, written_ids) if written_ids else messages


def _adapt_calls(message: Message, traits: Traits) -> Message:
    """Returns a message with its thoughts and calls as the template takes them, or calls in the text."""
    manner = traits.manner
    if manner.short_ids and "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    member = traits.answer.thought_member
    calls = message.get("tool_calls")
    if member not in message and "reasoning_content" in message and not (calls and message.get("content")):
        message = {**message, member: message["reasoning_content"]}
    if not calls:
        return message
    if not traits.shows_calls:
        return _with_calls_in_text(message, traits.call_format)
    content = message.get("content") or manner.content
    return {**message, "content": content, "tool_calls": [_adapt_call(call, traits) for call in calls]}


def _adapt_call(call: dict[str, Any], traits: Traits) -> dict[str, Any]:
    function, manner = call["function"], traits.manner
    if manner.takes_text:
        function = {**function, "arguments": _arguments_text(function["arguments"])}
    elif _spells_containers(traits.call_format):
        arguments = {
            name: _json(value) if isinstance(value, (dict, list)) else value
            for name, value in function["arguments"].items()
        }
        function = {**function, "arguments": arguments}
    return {**call, "id": _short_id(call["id"]) if manner.short_ids else call["id"], "function": function}


def _spells_containers(form: CallFormat) -> bool:
    """Returns whether a template writes objects and arrays as Python does: its model is asked for JSON."""
    members = form.arguments
    return isinstance(members, ArgumentRow) and members.containers is Spelling.PYTHON and not members.quote


def _short_id(name: str) -> str:
    """Returns the same nine characters for the same id."""
    return name if len(name) == 9 and name.isalnum() else hashlib.sha256(name.encode()).hexdigest()[:9]


def _with_calls_in_text(message: Message, form: CallFormat) -> Message:
    """Moves the calls of a message to the end of its text, written in this form."""
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = write_calls(form, [_call_to_write(call, form) for call in message["tool_calls"]])
    return {**others, "content": "\n".join((*filter(None, [message.get("content")]), calls))}


def _call_to_write(call: dict[str, Any], form: CallFormat) -> WrittenCall:
    function = call["function"]
    return WrittenCall(function["name"], function["arguments"], _short_id(call["id"]) if form.short_ids else call["id"])


def _arguments_text(arguments: dict[str, Any] | str) -> str:
    """Returns the JSON text of a call's arguments; of a call that was cut off, what there is of it."""
    return arguments if isinstance(arguments, str) else _json(arguments)


def _results_as_turns(messages: list[Message], ids: Container[str] | None = None) -> list[Message]:
    """Makes results turns of the user, all of them or those of the calls with these ids.

    Results behind each other, and what the user says then, are one turn.
    """
    turns: list[Message] = []
    is_open = False  # the last turn is made of results
    for message in messages:
        is_result = message["role"] == "tool" and (ids is None or message["tool_call_id"] in ids)
        text = f"<tool_response>\n{message['content']}\n</tool_response>" if is_result else message.get("content", "")
        if is_open and (is_result or message["role"] == "user"):
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{text}"}
        else:
            turns.append({"role": "user", "content": text} if is_result else message)
        is_open = is_result
    return turns


def _without_system(messages: list[Message]) -> list[Message]:
    """Puts the system's text before that of the next turn, as llama-server does."""
    if not messages or messages[0]["role"] != "system":
        return messages
    words, following = messages[0]["content"], messages[1:]
    if not following:
        return [{"role": "user", "content": words}]
    return [{**following[0], "content": f"{words}\n{following[0].get('content', '')}"}, *following[1:]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
