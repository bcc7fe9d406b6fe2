"""Finds out what a chat template can do, by rendering conversations with words that nobody else would use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from corosrv.formats.callformats.description import (
    BARE,
    HERMES,
    AnswerFormat,
    CallFormat,
    completed,
    completed_answer,
    shown_calls,
    told_calls,
)
from corosrv.formats.callformats.learn import Learnt, learn_calls
from corosrv.formats.callformats.learn_answer import NAME, PLAIN, TOOLS, USER, Manner, Probe, Rendering, learn_answer

log = logging.getLogger("corosrv.engine")

_PROBE_SECONDS = 0.5  # of computing, for all of them
_RESULT = "nedresult"


@dataclass(frozen=True, slots=True)
class Traits:
    """The abilities of a chat template: what it shows need not be written into the messages."""

    has_system: bool = False
    shows_tools: bool = False
    shows_calls: bool = False
    shows_results: bool = False
    manner: Manner = PLAIN  # the way in which it takes calls
    call_format: CallFormat = HERMES
    answer: AnswerFormat = BARE
    marks: tuple[str, ...] = ()  # control tokens that answers have to show, so that they can be read

    @property
    def thought_tags(self) -> tuple[str, str] | None:
        """Returns what stands around thoughts."""
        return self.answer.thought_tags

    @property
    def opens_thoughts(self) -> bool:
        """Returns whether the prompt ends inside thoughts, unless it is told not to think."""
        return self.answer.opens_thoughts


def find_traits(
    source: str,
    rendering: Rendering,
    end_texts: Sequence[str] = (),
    hidden_texts: Sequence[str] = (),
    seconds: float = _PROBE_SECONDS,
) -> Traits:
    """Renders some tiny conversations. Computes; never raises.

    `end_texts`: of tokens that end an answer; `hidden_texts`: of control tokens that add nothing to an answer's text
    unless they are asked to; `seconds`: of the processor, for all conversations.
    """
    traits = _find(source, Probe(rendering, seconds), end_texts)
    texts = f"{traits.call_format.texts} {traits.answer.texts}"
    return replace(traits, marks=tuple(text for text in hidden_texts if text in texts))


def _find(source: str, probe: Probe, end_texts: Sequence[str]) -> Traits:
    has_system = "nedsystem" in probe.render([{"role": "system", "content": "nedsystem"}, USER])
    shows_tools = NAME in probe.prompt()
    answer, learnt = _learn(source, probe, end_texts)
    form = None
    if learnt is not None:
        shown = shown_calls(probe.calls(learnt.manner, (NAME, {}))) if learnt.form is None else learnt.form
        form = None if shown is None else completed(shown)
    if learnt is None and shows_tools and (told := told_calls(source)) is not None:
        shows_results = _RESULT in probe.render(_with_result(PLAIN), tools=TOOLS)
        return Traits(has_system, shows_tools=True, shows_results=shows_results, call_format=told, answer=answer)
    if learnt is None or form is None:
        # Where calls are shown in a way that is not read here, tools and results are written into the messages: a
        # list of tools that asks for calls in that way would lead astray.
        return Traits(has_system, answer=answer)
    return Traits(
        has_system=has_system,
        shows_tools=shows_tools,
        shows_calls=True,
        shows_results=_RESULT in probe.render(_with_result(learnt.manner), tools=TOOLS),
        manner=learnt.manner,
        call_format=form,
        answer=answer,
    )


def _learn(source: str, probe: Probe, end_texts: Sequence[str]) -> tuple[AnswerFormat, Learnt | None]:
    answer = BARE
    try:
        answer = completed_answer(learn_answer(source, probe, end_texts), source)
        return answer, learn_calls(probe, answer, end_texts)
    except Exception as error:  # anything: what is looked at is text from the model's file
        log.warning("the format of calls cannot be learnt from the model's chat template: %r", error)
        return answer, None


def _with_result(manner: Manner) -> list[dict[str, Any]]:
    call = {"id": manner.ids[0], "type": "function", "function": {"name": NAME, "arguments": {}}}
    asked = {"role": "assistant", "content": manner.content, "tool_calls": [call]}
    if manner.takes_text:
        call["function"] = {"name": NAME, "arguments": "{}"}
    return [USER, asked, {"role": "tool", "content": _RESULT, "name": NAME, "tool_call_id": manner.ids[0]}]
