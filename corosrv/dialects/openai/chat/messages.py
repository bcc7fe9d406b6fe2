"""The messages of a chat: roles, contents, tools, and what else a template may be told."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import check_template_arguments
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import (
    PART_END,
    CallMode,
    CallPolicy,
    Content,
    Part,
    check_count,
    join,
    misplaced_image,
)
from corosrv.dialects.chat.conversation import arguments as arguments_of
from corosrv.dialects.openai.chat import schema
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake, read_detail

_PREDICTION = "prediction.content"


def prediction(predicted: schema.PredictedOutput) -> str:
    """Returns the text that much of the answer is expected to be."""
    content = predicted.content
    return check_text(content if isinstance(content, str) else "".join(part.text for part in content), _PREDICTION)


_POLICIES = {mode.value: CallPolicy(mode) for mode in CallMode}


def tools(body: schema.ChatBody) -> tuple[dict[str, Any], ...]:
    """Returns the tools that the model may call. Raises Refused for too many."""
    if not body.tools:
        return ()
    check_count(body.tools)
    functions = [tool.function for tool in body.tools]
    return tuple(conversation.tool(function.name, function.description, function.parameters) for function in functions)


def tool_choice(body: schema.ChatBody) -> CallPolicy:
    choice = body.tool_choice
    if isinstance(choice, schema.NamedTool):
        return CallPolicy(CallMode.REQUIRED, choice.function.name)
    return _POLICIES[choice or "auto"]


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def turns(messages: list[schema.Message], images: ImageIntake | None = None) -> tuple[dict[str, Any], ...]:
    """Messages as templates take them; `images` is None where the model takes none, and otherwise waits for them.

    Raises Refused, which names the place.
    """
    if images is not None:
        images.expect(sum(map(_n_images, messages)), "messages")
    names: dict[str, str] = {}  # of the functions called so far, by the calls' ids
    last = len(messages) - 1
    return tuple([_turn(message, f"messages[{i}]", names, i == last, images) for i, message in enumerate(messages)])


def _n_images(message: schema.Message) -> int:
    content = message.content
    return sum(part.get("type") == "image_url" for part in content) if isinstance(content, list) else 0


def _turn(
    message: schema.Message, param: str, names: dict[str, str], is_last: bool, images: ImageIntake | None
) -> dict[str, Any]:
    if message.function_call:
        raise NotSupported(f"{param}.function_call: send tool_calls instead", param, "unsupported_parameter")
    if message.role not in _ROLES:
        raise Refused(
            f"{param}.role must be system, developer, user, assistant or tool, not '{message.role[:40]}'",
            f"{param}.role",
        )
    # As llama-server joins the parts of a message, and those of one that is to be continued.
    between = "\n\n" if is_last and message.role == "assistant" else PART_END
    content = _content(message, f"{param}.content", between, images)
    turn: dict[str, Any] = {"role": _ROLES[message.role], "content": content}
    if message.role == "tool":
        turn |= _result_members(message, param, names)
    if message.role == "assistant":
        turn |= _assistant_members(message, param, names)
    elif message.tool_calls:
        raise Refused(f"{param}.tool_calls: only the assistant calls tools", f"{param}.tool_calls")
    return turn


def _result_members(message: schema.Message, param: str, names: dict[str, str]) -> dict[str, Any]:
    """Returns the id of the call that a tool's message answers, and the function's name where that is known."""
    if message.tool_call_id is None:
        raise Refused(
            f"{param}.tool_call_id is required: the id of the call that this is the result of",
            f"{param}.tool_call_id",
            "missing_required_parameter",
        )
    name = message.name or names.get(message.tool_call_id)
    members = {"tool_call_id": check_text(message.tool_call_id, f"{param}.tool_call_id")}
    return members if name is None else members | {"name": check_text(name, f"{param}.name")}


def _assistant_members(message: schema.Message, param: str, names: dict[str, str]) -> dict[str, Any]:
    """Returns what an assistant's message has besides its content."""
    members: dict[str, Any] = {}
    if message.reasoning_content:
        members["reasoning_content"] = check_text(message.reasoning_content, f"{param}.reasoning_content")
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        members["tool_calls"] = [_call(call, f"{param}.tool_calls[{i}]", names) for i, call in calls]
    return members


def _call(call: schema.ToolCall, param: str, names: dict[str, str]) -> dict[str, Any]:
    name = names[call.id] = check_text(call.function.name, f"{param}.function.name")
    arguments = arguments_of(call.function.arguments, f"{param}.function.arguments")
    function = {"name": name, "arguments": arguments}
    return {"id": check_text(call.id, f"{param}.id"), "type": "function", "function": function}


def _content(message: schema.Message, param: str, between: str, images: ImageIntake | None) -> Content:
    content = message.content
    if isinstance(content, str):
        return check_text(content, param)
    if isinstance(content, list):
        parts = enumerate(content)
        return join((_part(part, f"{param}[{i}]", message.role, images) for i, part in parts), between)
    if message.role == "assistant" and (content is None or message.tool_calls):
        return ""
    raise Refused(f"{param} is required: a string or a list of parts", param, "missing_required_parameter")


def _part(part: dict[str, Any], param: str, role: str, images: ImageIntake | None) -> Part:
    kind = part.get("type")
    if kind == "image_url" and images is not None:
        if role != "user":
            raise misplaced_image(param, "messages of the user")
        return _image(part.get("image_url"), f"{param}.image_url", images)
    if kind not in ("text", "refusal"):
        read = "'text'" if images is None else "'text' and 'image_url'"
        words = f"this model reads parts of type {read} only, not {str(kind)[:40]!r}"
        raise NotSupported(f"{param}: {words}", param, "unsupported_content")
    text = part.get(kind)
    if not isinstance(text, str):
        raise Refused(f"{param}.{kind} must be a string", f"{param}.{kind}")
    return check_text(text, f"{param}.{kind}")


def _image(value: object, param: str, images: ImageIntake) -> Part:
    """Reads the image of a URL, which stands by itself or in an object with its `detail`."""
    url, detail = (value.get("url"), value.get("detail")) if isinstance(value, dict) else (value, None)
    if not isinstance(url, str):
        raise Refused(f"{param} must be a URL, or an object with a url", param)
    return images.from_url(url, param, read_detail(detail, f"{param}.detail"))


def template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Checks the arguments: none takes the place of what the server tells the template. Raises Refused."""
    try:
        return check_template_arguments(arguments)
    except ValueError as error:
        raise Refused(f"chat_template_kwargs.{error}", "chat_template_kwargs") from None
