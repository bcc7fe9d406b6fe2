"""Messages to prompt, by the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from corosrv.engine.sandbox import Sandbox, TemplateLimits
from corosrv.errors import Refused
from corosrv.jobs import Messages

# 32 code points that Unicode keeps for internal use: they mark places in a conversation while it is rendered.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Piece(NamedTuple):
    """Part of a rendered prompt; in `is_text` parts control markers are ordinary text."""

    text: str
    is_text: bool


class ChatTemplate:
    """One model's template. Rendering computes, and never waits."""

    def __init__(
        self, source: str, control_markers: Iterable[str], special: dict[str, str], limits: TemplateLimits | None = None
    ) -> None:
        """`control_markers`: texts of control tokens; `special`: what templates know as bos_token and so on."""
        self.source = source
        self._special = special
        markers = sorted((m for m in control_markers if m), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None
        self._environment = Sandbox(limits or TemplateLimits())
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # anything, as below
            raise Refused(f"the model's chat template cannot be used: {error}", None, "invalid_template") from error

    def render(self, prompt: Messages) -> list[Piece]:
        """The prompt as pieces, in order. Raises Refused when the template refuses the conversation."""
        contents = "".join(str(message.get("content") or "") for message in prompt.messages)
        # Three that the conversation itself does not use: around a control marker, and at the place to continue from.
        free = [mark for mark in _NONCHARACTERS if mark not in contents]
        if len(free) < 3:
            raise Refused("the messages use up the code points U+FDD0 to U+FDEF", "messages")
        opening, closing, end = free[:3]

        messages = [self._guarded(message, opening, closing) for message in prompt.messages]
        if prompt.continue_final:
            messages[-1]["content"] += end
        values = {name: self._marked(value, opening, closing) for name, value in prompt.template_arguments.items()}
        rendered = self._run(messages, prompt, values)
        if prompt.continue_final:
            before, found, _ = rendered.partition(end)
            if not found:
                raise Refused("the model's chat template drops the message that is to be continued", "messages")
            rendered = before
        return list(_pieces(rendered, opening, closing))

    def _guarded(self, message: dict[str, Any], opening: str, closing: str) -> dict[str, Any]:
        """The message with each control marker in its content set between two marks."""
        if "content" not in message:
            return dict(message)
        return {**message, "content": self._marked(message["content"], opening, closing)}

    def _marked(self, text: Any, opening: str, closing: str) -> Any:
        if self._markers is None or not isinstance(text, str):
            return text
        return self._markers.sub(lambda found: opening + found.group() + closing, text)

    def _run(self, messages: list[dict[str, Any]], prompt: Messages, values: dict[str, Any]) -> str:
        arguments = {
            **self._special,
            **values,
            "messages": messages,
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        try:
            return self._environment.render_limited(self._template, arguments)
        except Exception as error:  # anything: it is the template's code that raised it
            raise Refused(
                f"the model's chat template refuses these messages: {error}", "messages", "invalid_template"
            ) from error


def _pieces(rendered: str, opening: str, closing: str) -> Iterator[Piece]:
    """Cuts at the marks; those that a template has torn apart are dropped."""
    at = 0
    for marked in re.finditer(f"{opening}([^{opening}{closing}]*){closing}", rendered):
        yield from _piece(rendered[at : marked.start()], opening, closing)
        yield Piece(marked.group(1), is_text=True)
        at = marked.end()
    yield from _piece(rendered[at:], opening, closing)


def _piece(text: str, opening: str, closing: str) -> Iterator[Piece]:
    if clean := text.replace(opening, "").replace(closing, ""):
        yield Piece(clean, is_text=False)
