"""Finds out what a chat template can do, by rendering conversations with words that nobody else would use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corosrv.errors import Refused
from corosrv.processor import thread_seconds

# What stands around the thoughts of the models that think in their text.
_THOUGHT_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))

_PROBE_SECONDS = 0.2  # of computing, for all of them

# Renders messages with further arguments; raises Refused where the template does.
Rendering = Callable[..., str]

_NAME, _KEY, _VALUE, _RESULT = "nedtool", "nedkey", "nedvalue", "nedresult"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
    },
}
_USER: dict[str, Any] = {"role": "user", "content": "neduser"}
# How a call looks in each format, what stands before and behind it left out.
_FORMATS = (
    ("hermes", re.compile(rf'<tool_call>\s*\{{"name": ?"{_NAME}", ?"arguments": ?\{{"{_KEY}": ?"{_VALUE}"\}}\}}')),
    ("mistral", re.compile(rf'\[TOOL_CALLS\]\s*\[\{{"name": ?"{_NAME}", ?"arguments": ?\{{"{_KEY}": ?"{_VALUE}"\}}')),
    ("llama3", re.compile(rf'\{{"name": ?"{_NAME}", ?"parameters": ?\{{"{_KEY}": ?"{_VALUE}"\}}\}}')),
)


@dataclass(frozen=True, slots=True)
class Traits:
    """The abilities of a chat template: what it shows need not be written into the messages."""

    has_system: bool = False
    shows_tools: bool = False
    shows_calls: bool = False
    shows_results: bool = False
    takes_text: bool = False  # arguments as JSON text; else as values
    short_ids: bool = False  # calls are known by nine letters or digits
    tool_format: str = "hermes"
    thought_tags: tuple[str, str] | None = None
    opens_thoughts: bool = False  # the prompt ends inside them, unless told not to think


def find_traits(source: str, rendering: Rendering) -> Traits:
    """Renders some tiny conversations. Computes; never raises."""
    probe = _Probe(rendering)
    has_system = "nedsystem" in probe.render([{"role": "system", "content": "nedsystem"}, _USER])
    shows_tools = _NAME in probe.render([_USER], tools=[_TOOL])
    takes_text, short_ids, called = _find_calls(probe)
    shows_results = bool(called) and _RESULT in probe.render(_exchange(_call(takes_text, short_ids), with_result=True))
    call_format = next((name for name, form in _FORMATS if form.search(called)), None)
    tags = next((pair for pair in _THOUGHT_TAGS if pair[1] in source), None)
    prompt = probe.render([_USER], add_generation_prompt=True)
    return Traits(
        has_system=has_system,
        # A list of tools that asks for calls in a format that is not read here would lead astray.
        shows_tools=shows_tools and call_format is not None,
        shows_calls=call_format is not None,
        # Results stand behind calls, and go the way of these.
        shows_results=call_format is not None and shows_results,
        takes_text=takes_text,
        short_ids=short_ids,
        tool_format=call_format if shows_tools and call_format is not None else "hermes",
        thought_tags=tags,
        opens_thoughts=tags is not None and prompt.rstrip().endswith(tags[0]),
    )


class _Probe:
    """Gives up on a template that takes long: a hostile one should not take its limit again and again."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._seconds_left = _PROBE_SECONDS

    def render(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        """Returns the text that the template makes of messages, or an empty one when it refuses."""
        if self._seconds_left < 0:
            return ""
        began = thread_seconds()  # not the clock: a busy machine must not change what is found
        try:
            return self._rendering(messages, **arguments)
        except Refused:
            return ""
        finally:
            self._seconds_left -= thread_seconds() - began


def _find_calls(probe: _Probe) -> tuple[bool, bool, str]:
    """Returns whether arguments are taken as text, whether ids have to be short, and what a call then looks like."""
    for short_ids in (False, True):
        for takes_text in (False, True):
            called = probe.render(_exchange(_call(takes_text, short_ids)))
            if f'"{_KEY}": "{_VALUE}"' in called or f'"{_KEY}":"{_VALUE}"' in called:
                return takes_text, short_ids, called
    return False, False, ""


def _call(takes_text: bool, short_ids: bool) -> dict[str, Any]:
    values = {_KEY: _VALUE}
    function = {"name": _NAME, "arguments": json.dumps(values) if takes_text else values}
    return {"id": "nedcalled" if short_ids else "call_nedcall", "type": "function", "function": function}


def _exchange(call: dict[str, Any], with_result: bool = False) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "content": _RESULT, "name": _NAME, "tool_call_id": call["id"]}
    return [*asked, result] if with_result else asked
