"""Reads what is asked from files: conversations, and traces of when requests of which sizes came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from corosrv.base.errors import BenchError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The words of one client, turn by turn; the server gives the answers between."""

    turns: tuple[str, ...]
    system: str = ""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace: its seconds from the first one, and the tokens of its prompt and of its answer."""

    at: float
    n_input: int
    n_output: int


class _Turn(msgspec.Struct):
    role: str
    content: str | None = None


class _PromptLine(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Turn] = []


class _TraceLine(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int


def read_dialogues(path: Path) -> tuple[Dialogue, ...]:
    """Reads JSON lines: texts, objects with `prompt`, or with `messages`, whose answers are left out.

    Raises BenchError, which names the line.
    """
    dialogues = tuple(_dialogue(line) for line in _lines(path, str | _PromptLine))
    for number, dialogue in enumerate(dialogues, 1):
        if not dialogue.turns or not all(dialogue.turns):
            raise BenchError(f"{path}, line {number}: a text, a `prompt`, or `messages` of a user are wanted")
    return dialogues


def _dialogue(line: str | _PromptLine) -> Dialogue:
    if isinstance(line, str):
        return Dialogue((line,))
    if line.prompt is not None:
        return Dialogue((line.prompt,))
    texts = {role: [turn.content or "" for turn in line.messages if turn.role == role] for role in ("system", "user")}
    return Dialogue(tuple(texts["user"]), "\n\n".join(texts["system"]))


def read_trace(path: Path, rate: float = 0.0) -> tuple[TracedRequest, ...]:
    """Reads JSON lines with `timestamp` (ms), `input_length` and `output_length`, as published traces have them.

    `rate`: requests a second to which the recorded times are stretched. Raises BenchError.
    """
    lines = list(_lines(path, _TraceLine))
    first, last = (each(line.timestamp for line in lines) for each in (min, max))
    if any(line.input_length < 1 or line.output_length < 1 for line in lines):
        raise BenchError(f"{path}: a request has no token to read, or none to write")
    if rate and last == first:
        raise BenchError(f"{path}: all requests have the same timestamp, which --rate cannot stretch")
    scale = (len(lines) - 1) / rate / (last - first) if rate else 0.001
    requests = (
        TracedRequest(scale * (line.timestamp - first), line.input_length, line.output_length) for line in lines
    )
    return tuple(sorted(requests, key=lambda request: request.at))


def _lines(path: Path, kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    yield decoder.decode(line)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}, line {number}: {error}") from None
    if not number:
        raise BenchError(f"{path} is empty")
