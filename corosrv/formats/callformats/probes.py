"""Renders tiny conversations with words that nobody else would use, in the ways in which templates want calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.base.processor import thread_seconds

# Renders messages with further arguments; raises Refused where the template does.
Rendering = Callable[..., str]
Arguments = dict[str, Any]
ProbeCall = tuple[str, Arguments]

NAME, OTHER_NAME = "nedtool", "nedother"
KEY, VALUE, OTHER_KEY, OTHER_VALUE = "nedkey", "nedvalue", "neda", "nedmore"
THOUGHT = "nedthought"
CONTENT = "\xa4nedtext\xa4"  # begins and ends with what no markup does
USER: dict[str, Any] = {"role": "user", "content": "neduser"}
IDS = ("nedcallz1", "nedcallz2")
LONG_IDS = ("call_nedcallz1", "call_nedcallz2")


def tool(name: str) -> dict[str, Any]:
    """Makes a tool that takes the arguments of the probes."""
    properties = {KEY: {"type": "string", "description": "nedkey"}, OTHER_KEY: {"type": "string", "description": "a"}}
    parameters = {"type": "object", "properties": properties, "required": [KEY]}
    return {"type": "function", "function": {"name": name, "description": "nedwords", "parameters": parameters}}


TOOLS = [tool(NAME), tool(OTHER_NAME)]


@dataclass(frozen=True, slots=True)
class Manner:
    """The way in which a template takes calls."""

    takes_text: bool = False  # arguments as JSON text; else as values
    short_ids: bool = False  # ids have nine letters or digits
    content: str | None = ""  # of a turn that has calls and no text
    goes_on: bool = False  # calls of the last turn alone are not shown

    @property
    def ids(self) -> tuple[str, str]:
        return IDS if self.short_ids else LONG_IDS


PLAIN = Manner()
MANNERS = [
    Manner(takes_text, short_ids, content, goes_on)
    for goes_on in (False, True)
    for content in ("", None)
    for short_ids in (False, True)
    for takes_text in (False, True)
]


class Probe:
    """Gives up on a template that takes long: a hostile one should not take its limit again and again."""

    def __init__(self, rendering: Rendering, seconds: float) -> None:
        """`seconds`: of the processor, for all conversations."""
        self._rendering = rendering
        self._seconds_left = seconds

    def render(self, messages: Sequence[dict[str, Any]], **arguments: Any) -> str:
        """Returns the text that the template makes of messages, or an empty one when it refuses."""
        if self._seconds_left < 0:
            return ""
        began = thread_seconds()  # not the clock: a busy machine must not change what is learnt
        try:
            return self._rendering(list(messages), **arguments)
        except TemplateTooCostly:  # what it takes for a few words it would take each time
            self._seconds_left = -1.0
            return ""
        except Refused:
            return ""
        finally:
            self._seconds_left -= thread_seconds() - began

    def prompt(self, **arguments: Any) -> str:
        """Renders a question, up to where the model goes on."""
        return self.render([USER], tools=TOOLS, add_generation_prompt=True, **arguments)

    def calls(self, manner: Manner, *calls: ProbeCall) -> str:
        """Renders a turn with these calls."""
        return self._turn(manner, self._called(manner, calls))

    def text(self, manner: Manner) -> str:
        """Renders a turn with a text where calls would be."""
        return self._turn(manner, {"role": "assistant", "content": CONTENT})

    def _turn(self, manner: Manner, turn: dict[str, Any]) -> str:
        messages = [USER, turn, *(self._after(manner, turn) if manner.goes_on else ())]
        return self.render(messages, tools=TOOLS)

    def _called(self, manner: Manner, calls: Sequence[ProbeCall]) -> dict[str, Any]:
        tool_calls = []
        for id, (name, arguments) in zip(manner.ids, calls, strict=False):
            function = {"name": name, "arguments": json.dumps(arguments) if manner.takes_text else dict(arguments)}
            tool_calls.append({"id": id, "type": "function", "function": function})
        return {"role": "assistant", "content": manner.content, "tool_calls": tool_calls}

    def _after(self, manner: Manner, turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for call in turn.get("tool_calls", ()):
            yield {"role": "tool", "content": "nedresult", "name": NAME, "tool_call_id": call["id"]}
        if "tool_calls" not in turn:
            yield USER
