"""Chat templates that libllama has built in, known by their names."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import Refused
from corosrv.models.engine.binding import apply_chat_template, chat_template_names
from corosrv.models.engine.marks import free_marks


def builtin_name(source: str) -> str | None:
    """Returns the name of the built-in template that `source` selects; None where it is a template's text."""
    name = source.strip()
    return name if name in chat_template_names() else None


def check_source(source: str) -> None:
    """Raises Refused for a text that is neither a template nor the name of a built-in one."""
    if "{{" in source or "{%" in source or builtin_name(source) is not None:
        return
    raise Refused(
        f"{source.strip()[:80]!r} is neither a Jinja template, which has {{{{ or {{% in it, nor one of the built-in "
        f"templates, which are {', '.join(chat_template_names())}"
    )


class BuiltinTemplate:
    """One of them. It knows roles and contents; tools and calls have to be written into these."""

    def __init__(self, name: str) -> None:
        self._name = name

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = False, **ignored: Any) -> str:
        """Renders a conversation; other arguments have no meaning to it.

        Raises Refused for a NUL where no other character is left to stand for it.
        """
        texts = [(str(message["role"]), str(message.get("content") or "")) for message in messages]
        if not any("\0" in content for _, content in texts):
            return apply_chat_template(self._name, texts, add_generation_prompt)
        # libllama reads texts up to the first NUL.
        (mark,) = free_marks((content for _, content in texts), 1)
        marked = [(role, content.replace("\0", mark)) for role, content in texts]
        return apply_chat_template(self._name, marked, add_generation_prompt).replace(mark, "\0")
