"""The turns of a chat: roles, contents, and what else a template may be told."""

from __future__ import annotations

import re
from typing import Any

from corosrv.errors import NotSupported, Refused
from corosrv.http.body import check_text
from corosrv.openai.chat import schema

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED_ARGUMENTS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template",
     "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler",
     "joiner", "caller", "loop", "self")
)  # fmt: skip
_MAX_ARGUMENT = 1024  # bytes


def turn(message: schema.Message, param: str) -> dict[str, Any]:
    """One message as templates take it. Raises Refused, which names the place."""
    if message.role == "tool" or message.tool_calls or message.function_call:
        raise NotSupported(f"{param}: tool calls are not supported by this server yet", param, "unsupported_parameter")
    if message.role not in _ROLES:
        raise Refused(
            f"{param}.role must be system, developer, user or assistant, not '{message.role[:40]}'", f"{param}.role"
        )
    return {"role": _ROLES[message.role], "content": _content(message, f"{param}.content")}


def _content(message: schema.Message, param: str) -> str:
    content = message.content
    if isinstance(content, str):
        return check_text(content, param)
    if isinstance(content, list):
        return "".join(_part(part, f"{param}[{i}]") for i, part in enumerate(content))
    if content is None and message.role == "assistant":
        return ""
    raise Refused(f"{param} is required: a string or a list of parts", param, "missing_required_parameter")


def _part(part: dict[str, Any], param: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise NotSupported(
            f"{param}: this model reads parts of type 'text' only, not {str(kind)[:40]!r}", param, "unsupported_content"
        )
    if not isinstance(text, str):
        raise Refused(f"{param}.text must be a string", f"{param}.text")
    return check_text(text, f"{param}.text")


def template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same, checked: nothing that takes the place of what the server tells the template. Raises Refused."""
    for name, value in arguments.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if not _ARGUMENT_NAME.fullmatch(name) or name in _RESERVED_ARGUMENTS:
            raise Refused(f"{param} is no name for a template argument", "chat_template_kwargs")
        if not isinstance(value, (str, int, float, bool, type(None))) or len(str(value)) > _MAX_ARGUMENT:
            raise Refused(f"{param} must be a scalar of at most {_MAX_ARGUMENT} characters", "chat_template_kwargs")
    return arguments
