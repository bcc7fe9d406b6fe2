"""Defines a chat request that no longer depends on its dialect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from corosrv.contracts.jobs import Job
from corosrv.formats.structured import StructuralTag


class CallMode(str, Enum):
    """The model's freedom to call tools."""

    NONE = "none"
    AUTO = "auto"  # as the model likes
    REQUIRED = "required"  # one of them, or the one named


@dataclass(frozen=True, slots=True)
class CallPolicy:
    choice: CallMode = CallMode.AUTO
    name: str | None = None  # with REQUIRED: this tool


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The answer is JSON: valid for `schema`, or any object where there is none. `param` is where the schema stood."""

    schema: dict[str, Any] | bool | None = None
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """The answer is one of `texts`, or matches the regular expression `pattern` as a whole; `param`: where it stood."""

    param: str
    pattern: str | None = None
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """The answer is free text with tags in it, whose content has a form; `param`: where the structural tag stood."""

    tag: StructuralTag
    param: str


@dataclass(frozen=True, slots=True)
class ToolPlaces:
    """Paths of a tool's fields in a dialect's body, for errors; {} is the tool's number."""

    name: str = "tools[{}].function.name"
    schema: str = "tools[{}].function.parameters"


class Conversation(msgspec.Struct, frozen=True):
    """A checked chat request. Its job's one prompt is `Messages`, with the tools that are offered."""

    job: Job
    tool_choice: CallPolicy = CallPolicy()
    parallel_calls: bool = True
    answer_format: JsonFormat | PlainFormat | TaggedFormat | None = None  # None: any text
    places: ToolPlaces = ToolPlaces()
    echo: bool = False  # the answer begins with the message that it continues
    thinks: bool | None = None  # whether a model that can think does so; None: as it is used to
    thought_tokens: int | None = None  # that it may spend; None: as many as the model's card says
    thought_message: str | None = None  # the last words of thoughts that have spent them; None: the card's
