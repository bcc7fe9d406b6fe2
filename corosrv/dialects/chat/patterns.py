"""Matches the beginning of a text that is still arriving, and tells whether it may still become a match."""

from __future__ import annotations

import re
from collections.abc import Iterable


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
