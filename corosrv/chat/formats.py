"""The formats in which models write calls. ModelCard.tool_format names one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from corosrv.chat.patterns import Pattern, steps

_GAP = r"\s*"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Calls are JSON objects of a name and arguments; this is what stands around them."""

    opening: str  # before the first call
    closing: str  # after the last call
    between: str  # between two calls
    arguments: str  # the member that has them
    markers: tuple[str, ...]  # a text that has one of these goes on with a call
    lead: str = ""  # what may stand before it all
    joint: str = ""  # after a call, where another follows within the same opening and closing
    is_alone: bool = False  # markers count where an answer begins, and a call is all of it
    is_single: bool = False  # one call in an answer

    @property
    def head(self) -> str:
        """The text before the name of a call."""
        return '{"name": "'

    @property
    def middle(self) -> str:
        """The text between the name and the arguments."""
        return f'", "{self.arguments}": '

    def first_head(self) -> Pattern:
        """The pattern of everything before the arguments of the first call; group 1 is the name."""
        return Pattern(_GAP, f"(?:{re.escape(self.lead)})?", _GAP, *steps(self.opening.strip()), *self._head())

    def next_head(self) -> Pattern:
        """The same pattern for a call that follows a joint."""
        return Pattern(*self._head())

    def _head(self) -> list[str]:
        return [
            _GAP, r"\{", _GAP, *steps('"name"'), _GAP, ":", _GAP, '"', r"([\w.-]*)", '"', _GAP, ",", _GAP,
            *steps(f'"{self.arguments}"'), _GAP, ":", _GAP,
        ]  # fmt: skip

    def tail(self) -> re.Pattern[str]:
        """The pattern of everything after the arguments of a call; its group `joint` says that another call follows."""
        joint = f"(?P<joint>{re.escape(self.joint)})" if self.joint else "(?P<joint>(?!))"
        closing = re.escape(self.closing.strip())
        return re.compile(rf'\s*(?:,\s*"id"\s*:\s*"[^"]*"\s*)?\}}\s*(?:{joint}|{closing})')


FORMATS = {
    "hermes": ToolFormat(
        opening="<tool_call>\n",
        closing="\n</tool_call>",
        between="\n</tool_call>\n<tool_call>\n",
        arguments="arguments",
        markers=("<tool_call>",),
    ),
    # The lead is a control token with most of these models, and then no part of the text.
    "mistral": ToolFormat(
        lead="[TOOL_CALLS]",
        opening="[",
        closing="]",
        between=", ",
        joint=",",
        arguments="arguments",
        markers=("[TOOL_CALLS]", '[{"name":'),
    ),
    "llama3": ToolFormat(
        opening="",
        closing="",
        between="",
        arguments="parameters",
        markers=('{"name":',),
        is_alone=True,
        is_single=True,
    ),
}
