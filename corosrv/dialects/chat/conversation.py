"""A chat request that no longer depends on its dialect: its turns, its tools, and the form that its answer must have.

Turns and tools have the form that chat templates take; `checked` refuses tools that templates and grammars cannot hold.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, PromptTooLong, Refused
from corosrv.contracts.jobs import Image, Job, Prompt
from corosrv.formats import bodies
from corosrv.formats.bodies import check_text
from corosrv.formats.structured import StructuralTag

Turn = dict[str, Any]
Part = str | Image
Content = str | tuple[Part, ...]  # of a turn: a tuple where images are in it
# Between the parts of one message, as llama-server has it for templates that take texts alone: clients put a part for
# each thing they say, and do not end it.
PART_END = "\n"

_arguments = msgspec.json.Decoder(dict[str, Any])


def join(parts: Iterable[Part], between: str = PART_END) -> Content:
    """Makes the content of a turn: texts in a row are joined by `between`; images stand among them as they are."""
    content: list[Part] = []
    for part in parts:
        if isinstance(part, str) and content and isinstance(content[-1], str):
            content[-1] += between + part
        else:
            content.append(part)
    if any(isinstance(part, Image) for part in content):
        return tuple(content)
    return str(content[0]) if content else ""


def misplaced_image(param: str, places: str) -> NotSupported:
    """Makes the error for an image that a model would read elsewhere in the conversation, at these `places`."""
    return NotSupported(f"{param}: images are read in {places} only", param, "unsupported_content")


def n_images(turns: Iterable[Turn]) -> int:
    return sum(
        isinstance(part, Image) for turn in turns if isinstance(turn["content"], tuple) for part in turn["content"]
    )


def tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Makes a tool in the form that chat templates take."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def arguments(value: str | dict[str, Any], param: str) -> dict[str, Any] | str:
    """Reads a call's arguments from their JSON text, and takes an object as it is.

    A text that is no JSON object comes back unchanged: the model wrote it, and was cut off. Raises Refused for half a
    surrogate pair.
    """
    if not isinstance(value, str):
        return value
    encoded = check_text(value, param).encode()
    try:
        bodies.check(encoded)
        return _arguments.decode(encoded) if value.strip() else {}
    except (msgspec.MsgspecError, Refused):
        return value


class TurnList:
    """Builds the turns of a conversation. Thoughts, text and calls in a row are one turn, until `close`."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = list(turns)
        self._ours: Turn | None = None
        self._called: dict[str, str] = {}  # names of functions by the ids of their calls
        for turn in self._turns:
            for call in turn.get("tool_calls", ()):
                self._called.setdefault(call["id"], call["function"]["name"])

    @property
    def all(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    def say(self, role: str, content: Content) -> None:
        """Adds a turn of the user or the system, whose content has no images."""
        self.close()
        self._turns.append({"role": role, "content": content})

    def think(self, text: str) -> None:
        turn = self._open()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def answer(self, text: str) -> None:
        """Adds text of the assistant. After a call, or after other text, it begins a new turn."""
        if self._ours is not None and (self._ours["content"] or "tool_calls" in self._ours):
            self.close()
        self._open()["content"] = text

    def call(self, id: str, name: str, arguments: dict[str, Any] | str) -> None:
        calls: list[Any] = self._open().setdefault("tool_calls", [])
        calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        self._called.setdefault(id, name)

    def has_call(self, id: str) -> bool:
        return id in self._called

    def result(self, call_id: str, content: Content, param: str) -> None:
        """Adds the result of a call, which may have images. Raises Refused when no earlier call has this id."""
        name = self._called.get(call_id)
        if name is None:
            raise Refused(f"{param}: no call before it has the id '{call_id[:80]}'", param)
        self.close()
        self._turns.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def close(self) -> None:
        """Ends the assistant's turn: what it says next is another one."""
        self._ours = None

    def _open(self) -> Turn:
        if self._ours is None:
            self._ours = {"role": "assistant", "content": ""}
            self._turns.append(self._ours)
        return self._ours


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
    may_end_thoughts: bool = False  # their reader may have them ended before their budget is spent
    thought_message: str | None = None  # the last words of thoughts that have spent them; None: the card's


MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The schema of a tool without one; llama-server gives the template the same.
NO_ARGUMENTS = {"type": "object", "properties": {}}

Tool = dict[str, Any]


def check_count(tools: Sized, param: str = "tools") -> None:
    """Raises Refused for too many tools. To be called before any of them is looked at: there may be 100,000."""
    if len(tools) > MAX_TOOLS:
        raise Refused(f"{param}: at most {MAX_TOOLS}, not {len(tools)}", param)


def checked(tools: Sequence[Tool], places: ToolPlaces) -> tuple[Tool, ...]:
    """Returns the tools with every member filled in. Raises Refused for too many, bad names, and duplicates."""
    check_count(tools)
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name, param = name_of(tool), places.name.format(number)
        if not _NAME.fullmatch(name):
            raise Refused(f"{param} must be of 1 to 64 letters, digits, _ and -", param)
        if name in names:
            raise Refused(f"{param}: there is another tool of the name '{name}'", param)
        names.add(name)
    return tuple(map(_complete, tools))


def _complete(tool: Tool) -> Tool:
    function = {
        "name": name_of(tool),
        "description": tool["function"].get("description") or "",
        "parameters": tool["function"].get("parameters") or NO_ARGUMENTS,
    }
    return {"type": "function", "function": function}


def name_of(tool: Tool) -> str:
    return str(tool["function"]["name"])


def allowed_tools(tools: Sequence[Tool], names: Sequence[str], param: str) -> tuple[Tool, ...]:
    """Returns the tools of these names. Raises Refused for a name that none has; `param`: where the names are."""
    known = set(map(name_of, tools))
    for number, name in enumerate(names):
        if name not in known:
            raise Refused(f"{param}[{number}]: there is no tool of the name '{name[:64]}'", f"{param}[{number}]")
    return tuple(tool for tool in tools if name_of(tool) in names)


def parameters_of(tool: Tool) -> Any:
    """Returns the schema of a checked tool's arguments."""
    return tool["function"]["parameters"]


# Of the context: what an answer gets whose length nobody set, and the most that is kept free for any.
_OPEN_ANSWER, _LONGEST_ANSWER = 0.25, 0.5


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """Tells whether a prompt leaves room for its answer; `context` in tokens, 0 where nobody knows it."""

    context: int
    max_output_tokens: int | None
    count: Callable[[Prompt], int]  # raises PromptTooLong

    def holds(self, prompt: Prompt) -> bool:
        """Counts a prompt's tokens. May wait; raises as `count` does, but for PromptTooLong."""
        try:
            n_tokens = self.count(prompt)
        except PromptTooLong:
            return False
        return not self.context or n_tokens + self._answer_tokens <= self.context

    @property
    def _answer_tokens(self) -> int:
        wanted = self.max_output_tokens or int(self.context * _OPEN_ANSWER)
        return min(wanted, int(self.context * _LONGEST_ANSWER))


def newest_turns(turns: tuple[Turn, ...], fits: Callable[[tuple[Turn, ...]], bool]) -> tuple[Turn, ...]:
    """Returns the turns without as many of the oldest as it takes until the rest fits.

    System turns, the last that a user has said, and the last group stay even where they do not fit. A call goes with
    its results, and what a user has said with the answer. `fits` has to be true of fewer turns wherever it is of more.
    """
    if fits(turns):
        return turns
    groups = list(_droppable(turns))
    n_dropped = 1 + bisect_left(range(1, len(groups)), True, key=lambda n: fits(_drop(turns, groups[:n])))
    return _drop(turns, groups[:n_dropped])


def _drop(turns: tuple[Turn, ...], groups: list[range]) -> tuple[Turn, ...]:
    to_drop = {place for group in groups for place in group}
    return tuple(turn for place, turn in enumerate(turns) if place not in to_drop or turn["role"] == "system")


def _droppable(turns: tuple[Turn, ...]) -> Iterator[range]:
    """Yields the places of turns that go together, in the order in which they go.

    Before the last user's turn a group begins with each of the user's turns; behind it, with each answer of the model.
    """
    last_user = max((place for place, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    yield from _groups(turns, range(last_user), "user")
    behind = [*_groups(turns, range(last_user + 1, len(turns)), "assistant")]
    yield from behind[:-1]


def _groups(turns: tuple[Turn, ...], places: range, first_role: str) -> Iterator[range]:
    starts = [place for place in places if place == places.start or turns[place]["role"] == first_role]
    for start, stop in pairwise([*starts, places.stop]):
        yield range(start, stop)
