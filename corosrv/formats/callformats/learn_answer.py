"""Learns from a chat template what its model writes around thoughts and around the text of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from corosrv.formats.callformats.description import AnswerFormat
from corosrv.formats.callformats.probes import CONTENT, KEY, NAME, THOUGHT, USER, VALUE, Probe

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
        rest = ""
    else:
        member, *pair, rest = learnt
        tags = pair[0], pair[1]
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


def _shown_tags(probe: Probe, prompt: str) -> tuple[str, str, str, str] | None:
    """Returns the member that thoughts are taken from, the texts around them, and what stands between them and the
    text; None where none are shown."""
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
                    return member, opening, closing, rest.partition(CONTENT)[0].strip() if CONTENT in rest else ""
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
