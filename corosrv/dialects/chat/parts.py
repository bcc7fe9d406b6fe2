"""The parts of an answer. A choice has any number of texts, thoughts and calls, and then its end.

The pieces of one text, thought or call follow each other; a call's arguments together are one JSON text.
"""

from __future__ import annotations

import msgspec

from corosrv.contracts.jobs import Chunk, TokenInfo


class AnswerText(msgspec.Struct, frozen=True, gc=False):
    """More of the answer's text."""

    choice: int
    text: str
    tokens: tuple[TokenInfo, ...] = ()  # those that it is made of, where the job asks for them


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of the thoughts before the answer's text."""

    choice: int
    text: str


class CallBegin(msgspec.Struct, frozen=True, gc=False):
    """A call of a tool; its arguments follow."""

    choice: int
    call: int  # number of the call within the choice
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments."""

    choice: int
    call: int
    piece: str


class End(msgspec.Struct, frozen=True):
    """The end of this choice."""

    choice: int
    reason: str  # stop, length or tool_calls
    chunk: Chunk  # the terminal one


Part = AnswerText | Reasoning | CallBegin | CallArguments | End
