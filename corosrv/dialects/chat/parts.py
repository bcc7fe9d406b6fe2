"""The parts of an answer. A choice has any number of texts, thoughts and calls, and then its end.

The pieces of one text, thought or call follow each other; a call's arguments together are one JSON text. `TokenQueue`
finds the tokens of each piece. `Pattern` matches the beginning of a text that is still arriving, and tells whether it
may still become a match.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

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


class TokenQueue:
    """Tokens of a text, which are taken piece by piece with it. A token belongs to the piece that it ends in."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenInfo]] = deque()
        self._n_queued = 0  # bytes of all tokens so far
        self._n_taken = 0  # bytes of all text so far

    def add(self, tokens: tuple[TokenInfo, ...]) -> None:
        for token in tokens:
            self._n_queued += len(token.piece)
            self._waiting.append((self._n_queued, token))

    def take(self, text: str) -> tuple[TokenInfo, ...]:
        """Takes the next piece of the text away. Returns its tokens."""
        if self._n_queued == 0:
            return ()
        self._n_taken += len(text.encode())
        tokens = []
        while self._waiting and self._waiting[0][0] <= self._n_taken:
            tokens.append(self._waiting.popleft()[1])
        return tuple(tokens)

    def take_all(self) -> tuple[TokenInfo, ...]:
        """Returns all tokens left: those that add no text, or a part of a character that never became complete."""
        tokens = tuple(token for _, token in self._waiting)
        self._waiting.clear()
        return tokens


class Pattern:
    """A pattern for the beginning of a text, in steps: regular expressions for one character or for several.

    No step may match what the one behind it has to begin with.
    """

    def __init__(self, *steps: str) -> None:
        self._whole = re.compile("".join(steps))
        self._steps = [re.compile(step) for step in steps]

    def match(self, text: str) -> re.Match[str] | None:
        """Matches at the beginning of the text."""
        return self._whole.match(text)

    def may_follow(self, text: str) -> bool:
        """Returns whether more text could make this one a match."""
        at = 0
        for step in self._steps:
            match = step.match(text, at)
            if match is None:
                break
            at = match.end()
        return at == len(text)


def steps(literal: str) -> list[str]:
    """Splits a text into steps of one character."""
    return [re.escape(character) for character in literal]


def first_of(text: str, words: Iterable[str]) -> tuple[int, str]:
    """Returns the position of the first of these words, and the word; (-1, "") for none."""
    matches = [(at, word) for word in words if (at := text.find(word)) >= 0]
    return min(matches, key=lambda match: (match[0], -len(match[1])), default=(-1, ""))


def partial_match_at(text: str, words: Iterable[str]) -> int:
    """Returns where a partial match of one of these words starts at the end of the text; its length for none."""
    begins = [len(text) - n for word in words for n in range(1, len(word)) if text.endswith(word[:n])]
    return min(begins, default=len(text))
