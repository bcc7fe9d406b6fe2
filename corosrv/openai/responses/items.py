"""The items of an input to turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.bodies.body import convert
from corosrv.chat import turns
from corosrv.chat.turns import PART_END, TurnList
from corosrv.errors import NotSupported, Refused
from corosrv.openai.responses import schema
from corosrv.openai.responses.store import Shelf
from corosrv.openai.responses.tools import called

_REFERENCE = "item_reference"
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def add(request_input: str | list[dict[str, Any]], to: TurnList, shelf: Shelf) -> None:
    """Adds a request's input to the conversation; `shelf` has the items that others refer to.

    Raises Refused, which names the place.
    """
    if isinstance(request_input, str):
        to.say("user", request_input)
        return
    if not request_input:
        raise Refused("input must not be an empty list", "input")
    for i, item in enumerate(request_input):
        if item.get("type") == _REFERENCE:
            item = shelf.item(convert(item, schema.Reference, f"input[{i}]").id, f"input[{i}].id")
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise NotSupported(
                f"input[{i}].type must be one of {', '.join((*_ITEMS, _REFERENCE))}, not {str(kind)[:40]!r}",
                f"input[{i}].type",
            )
        _ITEMS[kind](item, f"input[{i}]", to)


def _message(item: dict[str, Any], param: str, to: TurnList) -> None:
    message = convert(item, schema.MessageItem, param)
    text = _text(message.content, f"{param}.content")
    if message.role == "assistant":
        to.answer(text)
    else:
        to.say("system" if message.role == "developer" else message.role, text)


def _call(item: dict[str, Any], param: str, to: TurnList) -> None:
    call = convert(item, schema.CallItem, param)
    to.call(call.call_id, called(call.namespace, call.name), turns.arguments(call.arguments, f"{param}.arguments"))


def _output(item: dict[str, Any], param: str, to: TurnList) -> None:
    output = convert(item, schema.OutputItem, param)
    to.result(output.call_id, _text(output.output, f"{param}.output"), f"{param}.call_id")


def _reasoning(item: dict[str, Any], param: str, to: TurnList) -> None:
    reasoning = convert(item, schema.ReasoningItem, param)
    to.close()
    to.think(_text(reasoning.content or reasoning.summary, f"{param}.content"))


_ITEMS: dict[str, Callable[[dict[str, Any], str, TurnList], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
}


def _text(content: schema.Content, param: str) -> str:
    if isinstance(content, str):
        return content
    return PART_END.join(_part(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part(part: schema.ContentPart, param: str) -> str:
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXTS:
        raise NotSupported(
            f"{param}: this model reads text only, not {part.type[:40]!r}", f"{param}.type", "unsupported_content"
        )
    if part.text is None:
        raise Refused(f"{param}.text is required", f"{param}.text", "missing_required_parameter")
    return part.text
