"""Patterns that say of an unfinished text whether it may still become what they look for."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Pattern:
    """What a text may begin with, given as steps: regular expressions for one character each, or for any number."""

    def __init__(self, *steps: str) -> None:
        self._whole = re.compile("".join(steps))
        nested = ""
        for step in reversed(steps):
            nested = f"(?:{step}{nested})?"
        self._begun = re.compile(nested)

    def match(self, text: str) -> re.Match[str] | None:
        """The text begins with it."""
        return self._whole.match(text)

    def may_follow(self, text: str) -> bool:
        """The text is the beginning of it, and could go on to be all of it."""
        return self._begun.fullmatch(text) is not None


def steps(literal: str) -> list[str]:
    """A text, character by character."""
    return [re.escape(character) for character in literal]


def first_of(text: str, words: Iterable[str]) -> tuple[int, str]:
    """Where the first of these words stands, and which one; (-1, "") for none."""
    found = [(at, word) for word in words if (at := text.find(word)) >= 0]
    return min(found, key=lambda one: (one[0], -len(one[1])), default=(-1, ""))


def begun_at(text: str, words: Iterable[str]) -> int:
    """Where the end of the text may be the beginning of one of these words; its length where it is not."""
    begins = [len(text) - n for word in words for n in range(1, len(word)) if text.endswith(word[:n])]
    return min(begins, default=len(text))
