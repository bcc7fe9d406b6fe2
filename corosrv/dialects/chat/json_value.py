"""Finds the end of a JSON value while it arrives."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["\[\]{}]')
_QUOTE = re.compile(r'["\\]')
_BARE_END = re.compile(r"[\s,\]}]")


class JsonValue:
    """Follows the brackets and strings of one value, and ignores everything between them."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_bare = False  # a number or a word: it ends before what follows it
        self.is_whole = False

    def feed(self, text: str) -> int:
        """Returns how many characters of this text belong to the value: all of them until it is complete."""
        at = 0
        while at < len(text) and not self.is_whole:
            at = self._in_text(text, at) if self._in_string else self._between(text, at)
        return at

    def _in_text(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        match = _QUOTE.search(text, at)
        if match is None:
            return len(text)
        if match.group() == "\\":
            self._is_escaped = True
        else:
            self._in_string = False
            self.is_whole = self._depth == 0
        return match.end()

    def _between(self, text: str, at: int) -> int:
        if self._depth == 0 and (self._is_bare or text[at] not in '"[{'):
            return self._bare_value(text, at)
        match = _STRUCTURE.search(text, at)
        if match is None:
            return len(text)
        mark = match.group()
        if mark == '"':
            self._in_string = True
        elif mark in "[{":
            self._depth += 1
        else:
            self._depth -= 1
            self.is_whole = self._depth == 0
        return match.end()

    def _bare_value(self, text: str, at: int) -> int:
        self._is_bare = True
        match = _BARE_END.search(text, at)
        if match is None:
            return len(text)
        self.is_whole = True
        return match.start()
