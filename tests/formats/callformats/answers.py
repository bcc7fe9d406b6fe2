"""Collects the parts of an answer, for tests that compare it with what was meant."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, Part, Reasoning


class Answer(NamedTuple):
    """What a model has said: its thoughts, its text, and its calls as names and arguments."""

    thoughts: str
    text: str
    calls: list[tuple[str, Any]]


def collect(parts: Iterable[Part]) -> Answer:
    """Puts the parts of an answer together. Raises ValueError for arguments that are no JSON."""
    thoughts, text = "", ""
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case Reasoning():
                thoughts += part.text
            case AnswerText():
                text += part.text
            case CallBegin():
                calls.append((part.name, ""))
            case CallArguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + part.piece)
    return Answer(thoughts, text, [(name, json.loads(arguments)) for name, arguments in calls])
