"""The items of a response's input: made to turns, with the tools that they call, and listed page by page.

Tools are functions, those of namespaces under names of their own, and what clients add unasked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import Content, Part, TurnList, check_count, join, misplaced_image
from corosrv.dialects.openai.responses import schema
from corosrv.dialects.openai.responses.store import Shelf
from corosrv.formats.bodies import convert
from corosrv.images.intake import ImageIntake, read_detail

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
    return conversation.tool(called(namespace, _name(tool, param)), tool.description, tool.parameters)


def _name(tool: schema.Tool, param: str) -> str:
    if tool.name is None:
        raise Refused(f"{param}.name is required", f"{param}.name", "missing_required_parameter")
    return tool.name


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
        images.expect(sum(map(_n_images, request_input)) + conversation.n_images(to.all), "input")
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
    to.call(
        call.call_id, called(call.namespace, call.name), conversation.arguments(call.arguments, f"{param}.arguments")
    )


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


_PREFIX = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}

Item = dict[str, Any]


class InputItems(msgspec.Struct):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputQuery(msgspec.Struct):
    """Members of the query of a page."""

    after: Annotated[str | None, Meta(description="The id of the item before the page")] = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="`desc`: the newest item first")] = "desc"


def list_items(request_input: str | Sequence[Item], shelf: Shelf) -> tuple[Item, ...]:
    """Returns a request's input, which was found to be valid, as it is listed: each item with an id, a type, a status
    and parts. URLs of images are left out, which may be whole files."""
    if isinstance(request_input, str):
        request_input = ({"role": "user", "content": request_input},)
    return tuple(_item(item, shelf) for item in request_input)


def _item(item: Item, shelf: Shelf) -> Item:
    if item.get("type") == _REFERENCE:
        return shelf.item(item["id"], "input")
    kind = item.get("type") or "message"
    id = item.get("id") or _PREFIX[kind] + secrets.token_hex(24)
    told = {"status": "completed", **item, "id": id, "type": kind}
    if kind == "message":
        told["content"] = _parts(item["content"], "output_text" if item["role"] == "assistant" else "input_text")
    elif kind == "function_call_output" and not isinstance(item["output"], str):
        told["output"] = _parts(item["output"], "input_text")
    return told


def _parts(content: str | Sequence[Item], kind: str) -> list[Item]:
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [{name: value for name, value in part.items() if name != "image_url"} for part in content]


def page(items: Sequence[Item], arguments: Mapping[str, str]) -> InputItems:
    """Returns the page that a query asks for. Raises Refused, which names the parameter."""
    try:
        query = msgspec.convert(dict(arguments), InputQuery, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        param = place.rstrip("`")
        raise Refused(f"{param}: {words}", param) from None
    rows = list(items) if query.order == "asc" else list(reversed(items))
    if query.after is not None:
        rows = rows[_place(rows, query.after) + 1 :]
    data = rows[: query.limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return InputItems("list", data, first, last, len(rows) > len(data))


def _place(rows: Sequence[Item], id: str) -> int:
    for place, item in enumerate(rows):
        if item["id"] == id:
            return place
    raise Refused(f"after: no item '{id[:80]}' is in the input of this response", "after")
