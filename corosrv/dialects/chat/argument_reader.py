"""Reads the arguments of a call while they arrive, and writes them as JSON. `JsonValue` finds where a value ends."""

from __future__ import annotations

import ast
import json
import re
from abc import ABC, abstractmethod

from corosrv.dialects.chat.parts import partial_match_at
from corosrv.formats.callformats.description import Notation

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


CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_MOST_LITERAL = 65_536  # characters of a value that is read as Python writes it
_CONSTANTS_OF_JSON = {"true": "True", "false": "False", "null": "None"}
# A string, or a word of JSON outside of strings.
_WORD_OF_JSON = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\b(true|false|null)\b", re.DOTALL)


class ArgumentReader(ABC):
    """Follows the arguments of one call."""

    is_whole = False

    @abstractmethod
    def feed(self, text: str, is_last: bool) -> tuple[int, str]:
        """Returns how many characters of the text are certain, and the JSON that they add.

        What is not taken comes again at the beginning of the next text. `is_last`: no text follows this one.
        """


class JsonReader(ArgumentReader):
    """Arguments that are JSON already."""

    def __init__(self) -> None:
        self._value = JsonValue()

    def feed(self, text: str, is_last: bool) -> tuple[int, str]:
        taken = self._value.feed(text)
        self.is_whole = self._value.is_whole
        return taken, text[:taken]


class NotationReader(ArgumentReader):
    """Arguments that are JSON but for quotes: keys stand bare, and strings between other quotes."""

    def __init__(self, notation: Notation) -> None:
        self._quote = notation.quote
        self._in_string = False
        self._depth = 0
        self._word = re.compile(rf"[^\s:,{{}}\[\]{re.escape(notation.quote[0])}]+")

    def feed(self, text: str, is_last: bool) -> tuple[int, str]:
        at, json_text = 0, ""
        while at < len(text) and not self.is_whole:
            size, piece = self._string(text[at:], is_last) if self._in_string else self._between(text[at:], is_last)
            if size == 0:
                break
            at, json_text = at + size, json_text + piece
        return at, json_text

    def _string(self, text: str, is_last: bool) -> tuple[int, str]:
        end = text.find(self._quote)
        if end >= 0:
            self._in_string = False
            return end + len(self._quote), escaped(text[:end]) + '"'
        end = len(text) if is_last else partial_match_at(text, (self._quote,))
        return end, escaped(text[:end])

    def _between(self, text: str, is_last: bool) -> tuple[int, str]:
        if text.startswith(self._quote):
            self._in_string = True
            return len(self._quote), '"'
        if self._quote.startswith(text) and not is_last:
            return 0, ""
        if match := self._word.match(text):
            if match.end() == len(text) and not is_last:
                return 0, ""  # a key, or a value: what follows tells
            is_key = text[match.end() :].lstrip().startswith(":")
            return match.end(), json.dumps(match[0], ensure_ascii=False) if is_key else CONSTANTS.get(
                match[0], match[0]
            )
        self._depth += (text[0] in "{[") - (text[0] in "}]")
        self.is_whole = self._depth <= 0 and not text[0].isspace()
        return 1, text[0]


def escaped(text: str) -> str:
    """Returns a text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_of(text: str) -> str:
    """Returns the JSON text of a value, however the model spells it."""
    text = text.strip()
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        pass
    else:
        return text
    if len(text) <= _MOST_LITERAL:
        try:
            value = ast.literal_eval(_WORD_OF_JSON.sub(_as_python, text))
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _as_python(match: re.Match[str]) -> str:
    return _CONSTANTS_OF_JSON[match[1]] if match[1] else match[0]


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
