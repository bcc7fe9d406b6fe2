"""Messages to prompt, by the model's own chat template, in a sandbox with limits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from corosrv.errors import Refused
from corosrv.jobs import Messages

# 32 code points that Unicode keeps for internal use: they mark places in a conversation while it is rendered.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Piece(NamedTuple):
    """Part of a rendered prompt; in `is_text` parts control markers are ordinary text."""

    text: str
    is_text: bool


class TemplateLimits(NamedTuple):
    """What one rendering may take."""

    steps: int = 200_000  # loop rounds and calls
    seconds: float = 0.25
    characters: int = 8_000_000  # of the prompt, and of any string on the way to it


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
        self._environment = _Environment(limits or TemplateLimits())
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateError as error:
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
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
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


class _Environment(ImmutableSandboxedEnvironment):
    """What templates of models expect, with a count of what they do: the sandbox alone stops neither nested loops
    nor strings that double."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, limits: TemplateLimits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self._limits = limits
        self._steps_left = 0
        self._deadline = 0.0
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "_counted": self._counted,
            "_joined": self._joined,
        }

    def render_limited(self, template: jinja2.Template, arguments: dict[str, Any]) -> str:
        self._steps_left = self._limits.steps
        self._deadline = time.monotonic() + self._limits.seconds
        # Nothing in here switches greenlets, so the count belongs to this rendering alone.
        pieces: list[str] = []
        size = 0
        for piece in template.generate(arguments):
            pieces.append(piece)
            size += len(piece)
            self._check_size(size)
            self._step()
        return "".join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        counted: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return counted

    def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        self._step()
        return super().call(context, function, *arguments, **named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "*" and not (_is_number(left) and _is_number(right))):
            raise jinja2.TemplateRuntimeError(f"the operator {operator} is for numbers of ordinary size")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (str, list, tuple)):
            self._check_size(len(result))
        return result

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0 or (self._steps_left % 256 == 0 and time.monotonic() > self._deadline):
            raise jinja2.TemplateRuntimeError("it takes more steps or time than a template may")

    def _check_size(self, size: int) -> None:
        if size > self._limits.characters:
            raise jinja2.TemplateRuntimeError("it builds a longer text than a template may")

    def _counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self._step()
            yield item

    def _joined(self, parts: Sequence[Any]) -> str:
        texts = [str(part) for part in parts]
        self._check_size(sum(map(len, texts)))
        return "".join(texts)


class _Counting(NodeTransformer):
    """Puts every loop's iterable through `_counted`, and every `~` through `_joined`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Call(nodes.Name("_counted", "load"), [node.iter], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Call(nodes.Name("_joined", "load"), [parts], [], None, None, lineno=node.lineno)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 1e12


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateRuntimeError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **named: Any) -> str:
    """As Transformers does it: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **named)
