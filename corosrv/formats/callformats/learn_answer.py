"""Learns from a chat template what its model writes around thoughts and around the text of an answer.

`Probe` renders tiny conversations with words that nobody else would use, in the ways in which templates want calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.base.processor import thread_seconds
from corosrv.formats.callformats.description import AnswerFormat

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


# The names under which templates know thoughts.
THOUGHT_MEMBERS = ("reasoning_content", "reasoning", "thinking")
# What stands around the thoughts of models whose templates show none, if they speak of the second text.
_KNOWN_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_CALL = {"id": "call_nedcallz1", "type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}


def learn_answer(source: str, probe: Probe, end_texts: Iterable[str]) -> AnswerFormat:
    """Returns what a template makes of texts and thoughts. `source`: its text."""
    member = THOUGHT_MEMBERS[0]
    prompt, silent_prompt = probe.prompt(), probe.prompt(enable_thinking=False, thinking=False)
    plain = _turn(probe.render([USER, {"role": "assistant", "content": CONTENT}]))
    learnt = _shown_tags(probe, _turn(prompt))
    if learnt is None:
        tags = next((pair for pair in _KNOWN_TAGS if pair[1] in source), None)
        space = rest = ""
    else:
        member, opening, space, closing, rest = learnt
        tags = opening, closing
    header = _turn(prompt)
    if tags is not None:
        header = header.rstrip().removesuffix(tags[0]) if header.rstrip().endswith(tags[0]) else header
    before, _, after = plain.partition(CONTENT)
    text_opening = rest or (before.removeprefix(header) if before.startswith(header) and CONTENT in plain else "")
    turn = _overlap(header, rest)
    text_opening = text_opening.removeprefix(turn).strip()
    for tag in tags or ():
        text_opening = text_opening.rpartition(tag)[2].strip()
    return AnswerFormat(
        thought_tags=tags,
        thought_space=space,
        opens_thoughts=tags is not None and prompt.rstrip().endswith(tags[0]),
        tells_no_thoughts=bool(silent_prompt) and silent_prompt != prompt,
        turn=turn,
        text_opening=text_opening,
        text_closing=_text_before(after, end_texts).strip() if text_opening else "",
        thought_member=member,
    )


def _turn(rendered: str) -> str:
    """Returns what follows the user's words."""
    return rendered[rendered.rfind(USER["content"]) + len(USER["content"]) :] if rendered else ""


def _shown_tags(probe: Probe, prompt: str) -> tuple[str, str, str, str, str] | None:
    """Returns the member that thoughts are taken from, the text before them, the white space behind that, the text
    after them, and what stands between them and the text; None where none are shown."""
    for member in THOUGHT_MEMBERS:
        said: dict[str, Any] = {"role": "assistant", "content": CONTENT, member: THOUGHT}
        called = {"role": "assistant", "content": "", "tool_calls": [_CALL], member: THOUGHT}
        for turn in (said, called):
            rendered = _turn(probe.render([USER, turn]))
            if THOUGHT in rendered:
                before, _, after = rendered.partition(THOUGHT)
                opening = _opening(before, prompt)
                closing, rest = _closing(after, opening)
                if opening == closing:  # the prompt has begun and ended them
                    opening = _last_tag(before)
                if opening and closing:
                    space = before[len(before.rstrip()) :]
                    between = rest.partition(CONTENT)[0].strip() if CONTENT in rest else ""
                    return member, opening, space, closing, between
    return None


def _opening(before: str, prompt: str) -> str:
    """Returns what stands directly before thoughts; `prompt`: what the model goes on from."""
    if before.startswith(prompt) and (opening := before[len(prompt) :].strip()):
        return opening
    if prompt.startswith(before) and (opening := prompt[len(before) :].strip()):
        return opening
    return _last_tag(before)


def _last_tag(before: str) -> str:
    tags = list(_TAG.finditer(before.rstrip()))
    if not tags or tags[-1].end() != len(before.rstrip()):
        return ""
    # A tag that only separates stands behind the one that tells.
    is_telling = re.search("think|thought|reason", tags[-1][0], re.IGNORECASE)
    begin = tags[-1] if is_telling or len(tags) < 2 else tags[-2]
    return before[begin.start() :].strip()


def _closing(after: str, opening: str) -> tuple[str, str]:
    """Returns the tag that ends thoughts, and what follows it."""
    tags = list(_TAG.finditer(after))
    if not tags or after[: tags[0].start()].strip():
        return "", ""
    end = tags[0]
    if len(tags) > 1 and opening.count("<") > 1 and opening.endswith(tags[1][0]):
        end = tags[1]
    return after[: end.end()].strip(), after[end.end() :]


def _overlap(header: str, text: str) -> str:
    """Returns the longest beginning of a text that the header ends with."""
    return next((text[:size] for size in range(len(text), 3, -1) if header.endswith(text[:size])), "")


def _text_before(text: str, words: Iterable[str]) -> str:
    ends = [at for word in words if word and (at := text.find(word)) >= 0]
    return text[: min(ends, default=0)]
