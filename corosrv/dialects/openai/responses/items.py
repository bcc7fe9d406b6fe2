"""The items of an input to turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.dialects.chat import turns
from corosrv.dialects.chat.turns import Content, Part, TurnList, join, misplaced_image
from corosrv.dialects.openai.responses import schema
from corosrv.dialects.openai.responses.store import Shelf
from corosrv.dialects.openai.responses.tools import called
from corosrv.formats.bodies import convert
from corosrv.images.intake import ImageIntake, read_detail

_IMAGE = "input_image"
_REFERENCE = "item_reference"
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def add(
    request_input: str | list[dict[str, Any]], to: TurnList, shelf: Shelf, images: ImageIntake | None = None
) -> None:
    """Adds a request's input to the conversation; `shelf` has the items that others refer to.

    Waits for images; `images` is None where the model takes none. Raises Refused, which names the place.
    """
    if isinstance(request_input, str):
        to.say("user", request_input)
        return
    if not request_input:
        raise Refused("input must not be an empty list", "input")
    if images is not None:
        images.expect(sum(map(_n_images, request_input)) + turns.n_images(to.all), "input")
    for i, item in enumerate(request_input):
        if item.get("type") == _REFERENCE:
            item = shelf.item(convert(item, schema.Reference, f"input[{i}]").id, f"input[{i}].id")
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise NotSupported(
                f"input[{i}].type must be one of {', '.join((*_ITEMS, _REFERENCE))}, not {str(kind)[:40]!r}",
                f"input[{i}].type",
            )
        _ITEMS[kind](item, f"input[{i}]", to, images)


def _n_images(item: dict[str, Any]) -> int:
    content = item.get("output") if item.get("type") == "function_call_output" else item.get("content")
    parts = content if isinstance(content, list) else ()
    return sum(isinstance(part, dict) and part.get("type") == _IMAGE for part in parts)


def _message(item: dict[str, Any], param: str, to: TurnList, images: ImageIntake | None) -> None:
    message = convert(item, schema.MessageItem, param)
    place = f"{param}.content"
    if message.role == "user":
        to.say("user", _content(message.content, place, images))
    elif message.role == "assistant":
        to.answer(_text(message.content, place, images))
    else:
        to.say("system", _text(message.content, place, images))


def _call(item: dict[str, Any], param: str, to: TurnList, _: ImageIntake | None) -> None:
    call = convert(item, schema.CallItem, param)
    to.call(call.call_id, called(call.namespace, call.name), turns.arguments(call.arguments, f"{param}.arguments"))


def _output(item: dict[str, Any], param: str, to: TurnList, images: ImageIntake | None) -> None:
    output = convert(item, schema.OutputItem, param)
    to.result(output.call_id, _content(output.output, f"{param}.output", images), f"{param}.call_id")


def _reasoning(item: dict[str, Any], param: str, to: TurnList, images: ImageIntake | None) -> None:
    reasoning = convert(item, schema.ReasoningItem, param)
    to.close()
    to.think(_text(reasoning.content or reasoning.summary, f"{param}.content", images))


_ITEMS: dict[str, Callable[[dict[str, Any], str, TurnList, ImageIntake | None], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
}


def _content(content: schema.Content, param: str, images: ImageIntake | None) -> Content:
    if isinstance(content, str):
        return content
    return join(_part(part, f"{param}[{i}]", images) for i, part in enumerate(content))


def _text(content: schema.Content, param: str, images: ImageIntake | None) -> str:
    """Returns a content that has no place for images."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type == _IMAGE and images is not None:
            raise misplaced_image(f"{param}[{i}]", "messages of the user and outputs of functions")
    return str(_content(content, param, None))


def _part(part: schema.ContentPart, param: str, images: ImageIntake | None) -> Part:
    if part.type == _IMAGE and images is not None:
        return _image(part, param, images)
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXTS:
        words = f"this model reads {'text' if images is None else 'text and images'} only, not {part.type[:40]!r}"
        raise NotSupported(f"{param}: {words}", f"{param}.type", "unsupported_content")
    if part.text is None:
        raise Refused(f"{param}.text is required", f"{param}.text", "missing_required_parameter")
    return part.text


def _image(part: schema.ContentPart, param: str, images: ImageIntake) -> Part:
    """Reads an image, with the detail that is asked for."""
    if part.file_id is not None:
        raise NotSupported(f"{param}.file_id: no files are kept here: send an image_url", f"{param}.file_id")
    if not isinstance(part.image_url, str):
        raise Refused(f"{param}.image_url must be a URL", f"{param}.image_url")
    return images.from_url(part.image_url, f"{param}.image_url", read_detail(part.detail, f"{param}.detail"))
