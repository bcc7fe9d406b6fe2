"""The parts of an answer. A choice has any number of texts, thoughts and calls, and then its end.

The pieces of one text, thought or call follow each other; a call's arguments together are one JSON text. `TokenQueue`
finds the tokens of each piece, and `ThoughtTally` counts those of thoughts, also where a late reader gets the end of
thoughts and the text behind it in one chunk. `Pattern` matches the beginning of a text that is still arriving, and
tells whether it may still become a match.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk, TokenInfo, Vocabulary


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


_MOST_LAG = 256  # bytes of text that come later than their tokens


@dataclass(frozen=True, slots=True)
class _PlacedChunk:
    """A chunk, and what came before it: characters of the answer's text, and tokens."""

    chunk: Chunk
    begin: int
    n_before: int

    @property
    def end(self) -> int:
        return self.begin + len(self.chunk.text)


class ThoughtTally:
    """Counts the tokens of one choice from the one that completes an opening tag to the one that completes the closing.

    Where the prompt opens the thoughts they begin with the first token. All tokens of a chunk that does not tell them
    count where one of them does.
    """

    def __init__(self, find_vocabulary: Callable[[], Vocabulary] | None) -> None:
        self._find_vocabulary = find_vocabulary
        self._n_over = 0  # tokens of thoughts that are over
        self._first: int | None = None  # number of the first token of those that go on
        self._n_tokens = self._n_chars = self._n_edges = 0  # that were taken
        self._recent: deque[_PlacedChunk] = deque()  # chunks in which an edge may still be found

    @property
    def n_tokens(self) -> int:
        """The number of tokens of thoughts so far."""
        return self._n_over + (0 if self._first is None else max(self._n_tokens - self._first + 1, 0))

    def add(self, chunk: Chunk, edges: Sequence[int], n_held: int) -> None:
        """Takes the next chunk, and the places of all edges so far: where thoughts begin, and end, and begin again.

        `n_held`: characters at the end of the text whose meaning is open.
        """
        n_chars, n_tokens = self._n_chars, self._n_tokens
        self._n_chars += len(chunk.text)
        self._n_tokens += chunk.n_tokens
        if len(edges) == self._n_edges and not n_held and not self._recent:
            return
        self._recent.append(_PlacedChunk(chunk, n_chars, n_tokens))
        for place in edges[self._n_edges :]:
            if self._first is None:
                self._first = max(self._token_at(place, 0), 1)
            else:
                self._n_over += max(self._token_at(place, -1) - self._first + 1, 0)
                self._first = None
        self._n_edges = len(edges)
        while self._recent and self._recent[0].end <= self._n_chars - n_held:
            self._recent.popleft()

    def _token_at(self, place: int, default: int) -> int:
        """Returns the number, from 1 on, of the token that the text up to this place ends in; 0 for none.

        `default`: which token of a chunk that does not tell them, 0 for the first, -1 for the last.
        """
        placed = next((placed for placed in self._recent if placed.end >= place), None)
        if place <= 0 or placed is None:
            return 0 if place <= 0 else self._n_tokens
        chunk = placed.chunk
        if not (pieces := self._pieces(chunk)):
            return placed.n_before + range(1, chunk.n_tokens + 1)[default] if chunk.n_tokens else placed.n_before
        text = chunk.text.encode()
        # It begins with what of earlier tokens was not certain, and of its last tokens some may be missing.
        written = b"".join(pieces)
        lags = range(min(len(text), _MOST_LAG) + 1)
        n_earlier = next((n for n in lags if written.startswith(text[n : n + _MOST_LAG])), 0)
        n_bytes = len(chunk.text[: place - placed.begin].encode()) - n_earlier
        ends = accumulate(map(len, pieces), initial=0)
        return placed.n_before + next((number for number, end in enumerate(ends) if end >= n_bytes), chunk.n_tokens)

    def _pieces(self, chunk: Chunk) -> list[bytes]:
        """Returns what each token of a chunk adds to the text; nothing where that is not known."""
        ids = array("i", chunk.ids)
        if self._find_vocabulary is None or len(ids) != chunk.n_tokens:
            return []
        try:
            return list(map(self._find_vocabulary().piece, ids))
        except CorosrvError:  # the model's engine is lost
            return []


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
