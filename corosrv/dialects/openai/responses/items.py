"""The items of a response's input: made to turns, with the tools that they call, and listed page by page.

Tools are functions, those of namespaces under names of their own, and what clients add unasked.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import Content, Part, TurnList, check_count, join, misplaced_image
from corosrv.dialects.openai.responses import mcp_items, schema
from corosrv.dialects.openai.responses.mcp_items import McpAccess, McpToolbox
from corosrv.dialects.openai.responses.store import Item, Shelf
from corosrv.formats.bodies import check_text, convert, decode_base64
from corosrv.images.intake import ImageDetail, read_detail


class ReadsImages(Protocol):
    """Reads the images of items; see ImageIntake."""

    def expect(self, n_images: int, param: str) -> None: ...
    def from_url(self, url: str, param: str, detail: ImageDetail = ImageDetail.AUTO) -> Part: ...


if TYPE_CHECKING:
    from werkzeug.datastructures import MultiDict

# OpenAI's own servers run these, and agents offer them whether their user wants it or not. A model that may choose
# chooses among the functions beside them; where there are none, a search is what was asked for, and is refused.
_ADDED_UNASKED = frozenset(("web_search", "web_search_preview", "image_generation", "tool_search"))


@dataclass(frozen=True, slots=True)
class FunctionTools:
    """Functions that the model may call, and what the answer says of them.

    `origins` has the namespace and the name of a function by the name under which the model calls it. `customs` are the
    names of those that stand for custom tools. `toolboxes` are those of MCP servers, whose functions are not known yet.
    """

    functions: tuple[dict[str, Any], ...]
    origins: Mapping[str, tuple[str, str]]
    customs: frozenset[str]
    echo: tuple[schema.Tool, ...]
    toolboxes: tuple[McpToolbox, ...]


def read_tools(tools: list[schema.Tool], access: McpAccess) -> FunctionTools:
    """Makes the functions that a request's tools stand for. Raises Refused, which names the place."""
    check_count(tools)
    placed_tools = [(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    if any(tool.type in ("function", "custom", "namespace", "mcp") for tool in tools):
        placed_tools = [(param, tool) for param, tool in placed_tools if tool.type not in _ADDED_UNASKED]
    functions, origins, customs = list[dict[str, Any]](), dict[str, tuple[str, str]](), set[str]()
    boxes, echo = list[tuple[str, schema.Tool]](), list[schema.Tool]()
    for param, tool in placed_tools:
        if tool.type == "mcp":
            boxes.append((param, tool))
            echo.append(mcp_items.redact(tool))
            continue
        echo.append(tool)
        if tool.type == "namespace":
            namespace = _name(tool, param)
            for name, function in _functions(tool, namespace, param):
                origins[function["function"]["name"]] = (namespace, name)
                functions.append(function)
        elif tool.type == "custom":
            functions.append(_custom(tool, param))
            customs.add(_name(tool, param))
        else:
            functions.append(_function(tool, param))
    toolboxes = mcp_items.read_toolboxes(boxes, access) if boxes else ()
    return FunctionTools(tuple(functions), origins, frozenset(customs), tuple(echo), toolboxes)


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
        offered = "only 'function' and 'custom' are" if namespace is None else "only 'function' is"
        raise NotSupported(f"{param}.type: {offered} offered here, not {tool.type[:40]!r}", f"{param}.type")
    return conversation.tool(called(namespace, _name(tool, param)), tool.description, tool.parameters)


def _custom(tool: schema.Tool, param: str) -> dict[str, Any]:
    """Makes the function that stands for a custom tool: its only argument is the tool's input."""
    if tool.format is not None and tool.format.get("type") != "text":
        raise NotSupported(f"{param}.format.type: only 'text' is offered here", f"{param}.format.type")
    return conversation.tool(_name(tool, param), tool.description, schema.CUSTOM_PARAMETERS)


def _name(tool: schema.Tool, param: str) -> str:
    if tool.name is None:
        raise Refused(f"{param}.name is required", f"{param}.name", "missing_required_parameter")
    return tool.name


_IMAGE = "input_image"
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_REFERENCE = "item_reference"
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def add(
    request_input: str | list[Item], to: TurnList, shelf: Shelf, images: ReadsImages | None = None, param: str = "input"
) -> None:
    """Adds a request's input to the conversation; `shelf` has the items that others refer to.

    Waits for images, and lets others run; `images` is None where the model takes none. Raises Refused, which names the
    place in `param`.
    """
    if isinstance(request_input, str):
        to.say("user", request_input)
        return
    if not request_input:
        raise Refused(f"{param} must not be an empty list", param)
    if images is not None:
        images.expect(sum(map(_n_images, request_input)) + conversation.n_images(to.all), param)
    for i, item in enumerate(Turns().among(request_input)):
        place = f"{param}[{i}]"
        if item.get("type") == _REFERENCE:
            item = shelf.item(convert(item, schema.Reference, place).id, f"{place}.id")
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise NotSupported(
                f"{place}.type must be one of {', '.join((*_ITEMS, _REFERENCE))}, not {str(kind)[:40]!r}",
                f"{place}.type",
            )
        _ITEMS[kind](item, place, to, images)


def _n_images(item: dict[str, Any]) -> int:
    content = item.get("output") if item.get("type") in _OUTPUTS else item.get("content")
    parts = content if isinstance(content, list) else ()
    return sum(isinstance(part, dict) and part.get("type") == _IMAGE for part in parts)


def _message(item: dict[str, Any], param: str, to: TurnList, images: ReadsImages | None) -> None:
    message = convert(item, schema.MessageItem, param)
    place = f"{param}.content"
    if message.role == "user":
        to.say("user", _content(message.content, place, images))
    elif message.role == "assistant":
        to.answer(_text(message.content, place, images))
    else:
        to.say("system", _text(message.content, place, images))


def _call(item: dict[str, Any], param: str, to: TurnList, _: ReadsImages | None) -> None:
    call = convert(item, schema.CallItem, param)
    arguments = conversation.arguments(call.arguments, f"{param}.arguments")
    to.call(call.call_id, called(call.namespace, call.name), arguments)


def _custom_call(item: dict[str, Any], param: str, to: TurnList, _: ReadsImages | None) -> None:
    call = convert(item, schema.CustomCallItem, param)
    to.call(call.call_id, call.name, {"input": check_text(call.input, f"{param}.input")})


def _output(item: dict[str, Any], param: str, to: TurnList, images: ReadsImages | None) -> None:
    output = convert(item, schema.OutputItem, param)
    to.result(output.call_id, _content(output.output, f"{param}.output", images), f"{param}.call_id")


def _reasoning(item: dict[str, Any], param: str, to: TurnList, images: ReadsImages | None) -> None:
    reasoning = convert(item, schema.ReasoningItem, param)
    to.close()
    to.think(_text(reasoning.content or reasoning.summary, f"{param}.content", images))


_SEAL = b"corosrv:1:"  # before each summary, so that those of other servers are told apart


def seal(summary: str) -> str:
    """Returns a summary as the content of a compaction item. It is not encrypted: it is the client's own."""
    return base64.b64encode(_SEAL + summary.encode()).decode()


def _compaction(item: dict[str, Any], param: str, to: TurnList, _: ReadsImages | None) -> None:
    place = f"{param}.encrypted_content"
    try:
        content = decode_base64(convert(item, schema.CompactionItem, param).encrypted_content)
        summary = content.removeprefix(_SEAL).decode() if content.startswith(_SEAL) else None
    except ValueError:
        summary = None
    if summary is None:
        raise Refused(f"{place}: this is no compaction of this server's: send the conversation itself", place)
    to.say("user", f"A summary of our conversation before this, in your own words:\n\n{summary}")


_ITEMS: dict[str, Callable[[dict[str, Any], str, TurnList, ReadsImages | None], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    "compaction": _compaction,
    **mcp_items.ITEMS,
}


def _content(content: schema.Content, param: str, images: ReadsImages | None) -> Content:
    if isinstance(content, str):
        return content
    return join(_part(part, f"{param}[{i}]", images) for i, part in enumerate(content))


def _text(content: schema.Content, param: str, images: ReadsImages | None) -> str:
    """Returns a content that has no place for images."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type == _IMAGE and images is not None:
            raise misplaced_image(f"{param}[{i}]", "messages of the user and outputs of functions")
    return str(_content(content, param, None))


def _part(part: schema.ContentPart, param: str, images: ReadsImages | None) -> Part:
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


def _image(part: schema.ContentPart, param: str, images: ReadsImages) -> Part:
    """Reads an image, with the detail that is asked for."""
    if part.file_id is not None:
        raise NotSupported(f"{param}.file_id: no files are kept here: send an image_url", f"{param}.file_id")
    if not isinstance(part.image_url, str):
        raise Refused(f"{param}.image_url must be a URL", f"{param}.image_url")
    return images.from_url(part.image_url, f"{param}.image_url", read_detail(part.detail, f"{param}.detail"))


LOGPROBS = "message.output_text.logprobs"
IMAGE_URLS = "message.input_image.image_url"
_NOTHING_TO_INCLUDE = frozenset(
    ("reasoning.encrypted_content", "code_interpreter_call.outputs", "computer_call_output.output.image_url",
     "file_search_call.results", "web_search_call.action.sources", "web_search_call.results")
)  # fmt: skip
_MAX_ID = 512  # characters
_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
           "custom_tool_call": "ctc", "custom_tool_call_output": "ctco", "compaction": "cmp"}  # fmt: skip
_PREFIX |= mcp_items.PREFIXES


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


Included = Annotated[list[str], Meta(description=f"`{IMAGE_URLS}`: with the URLs of images, as they were sent")]


class ItemQuery(msgspec.Struct):
    """Members of the query of a conversation's items."""

    include: Included = []


class ItemsQuery(InputQuery):
    """Members of the query of a page of a conversation's items."""

    include: Included = []


def check_include(names: Iterable[str], *choices: str) -> None:
    """Raises NotSupported for what cannot be included.

    Names of what tools bring that do not exist here are ignored. So are encrypted thoughts: thoughts come in plain
    text, and may be sent back so.
    """
    for i, name in enumerate(names):
        if name not in _NOTHING_TO_INCLUDE and name not in choices:
            raise NotSupported(f"include[{i}]: {name[:60]!r} is not offered here", "include", "unsupported_parameter")


def read_include(arguments: MultiDict[str, str], *choices: str) -> frozenset[str]:
    """Returns what a query asks to include. Raises NotSupported."""
    names = [*arguments.getlist("include"), *arguments.getlist("include[]")]  # as OpenAI's clients write lists
    check_include(names, *choices)
    return frozenset(names)


def list_items(request_input: str | Sequence[Item], shelf: Shelf, param: str = "input") -> tuple[Item, ...]:
    """Returns a request's input, which was found to be valid, as it is kept: each item with an id, a type, a status and
    parts. Raises Refused for an id that is none."""
    if isinstance(request_input, str):
        request_input = ({"role": "user", "content": request_input},)
    return tuple(_item(item, shelf, f"{param}[{i}]") for i, item in enumerate(request_input))


def _item(item: Item, shelf: Shelf, param: str) -> Item:
    if item.get("type") == _REFERENCE:
        return shelf.item(item["id"], f"{param}.id")
    kind = item.get("type") or "message"
    id = item.get("id")
    if not id:
        id = f"{_PREFIX[kind]}_{secrets.token_hex(24)}"
    elif not isinstance(id, str) or len(check_text(id, f"{param}.id")) > _MAX_ID:
        raise Refused(f"{param}.id must be a string of up to {_MAX_ID} characters", f"{param}.id")
    status = {} if kind == "compaction" else {"status": "completed"}
    told: Item = {**status, **item, "id": id, "type": kind}
    if kind == "message":
        told["content"] = _parts(item["content"], "output_text" if item["role"] == "assistant" else "input_text")
    elif kind in _OUTPUTS and not isinstance(item["output"], str):
        told["output"] = _parts(item["output"], "input_text")
    return told


def _parts(content: str | list[Item], kind: str) -> list[Item]:
    return [{"type": kind, "text": content}] if isinstance(content, str) else content


def without_urls(item: Item) -> Item:
    """Returns an item without the URLs of its images, which may be whole files."""
    place = "output" if item["type"] in _OUTPUTS else "content"
    parts = item.get(place)
    if not isinstance(parts, list) or not any("image_url" in part for part in parts):
        return item
    return {**item, place: [{key: value for key, value in part.items() if key != "image_url"} for part in parts]}


def decode_all(data: Iterable[bytes]) -> list[Item]:
    """Decodes the items of a conversation. Lets others run meanwhile."""
    return [msgspec.json.decode(item) for item in Turns().among(data)]


class _UnreadImages:
    """Takes the images of items that are kept for a model which is not known yet."""

    def expect(self, n_images: int, param: str) -> None:
        """Does nothing: each model has limits of its own."""

    def from_url(self, url: str, param: str, detail: ImageDetail = ImageDetail.AUTO) -> str:
        check_text(url, param)
        return ""


def check_items(new_items: list[Item], history: list[Item], shelf: Shelf) -> None:
    """Raises Refused for items that no response could go on from, behind those before."""
    turns, images = TurnList(), _UnreadImages()
    if history:
        add(history, turns, shelf, images, "conversation")
    add(new_items, turns, shelf, images, "items")


def page(items: Sequence[Item], arguments: Mapping[str, str]) -> InputItems:
    """Returns the page that a query asks for. Raises Refused, which names the parameter."""
    asked = {name: arguments[name] for name in ("after", "limit", "order") if name in arguments}
    query = convert(asked, InputQuery, strict=False)
    rows = list(items) if query.order == "asc" else list(reversed(items))
    if query.after is not None:
        rows = rows[_place(rows, query.after) + 1 :]
    return page_of(rows[: query.limit], has_more=len(rows) > query.limit)


def page_of(items: list[Item], *, has_more: bool = False) -> InputItems:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return InputItems("list", items, first, last, has_more)


def _place(rows: Sequence[Item], id: str) -> int:
    for place, item in enumerate(rows):
        if item["id"] == id:
            return place
    raise Refused(f"after: no item '{id[:80]}' is in this list", "after")
